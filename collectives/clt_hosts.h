/* clt_hosts: the exchange of a job on several hosts, in two hops, so that an element crosses the network once
 * for each host and not once for each rank. Not for other folders.
 *
 * There are H hosts of k ranks each; rank h * k + j is rank j of host h. A reduction first adds inside each
 * host: rank j adds what its host's ranks bring for the owners h' * k + j of all hosts h', up to the host's
 * maximal whole subtrees of the tree over lanes. Then those sums go to the owners, which add those of all
 * hosts. A gather goes the other way: an owner sends its range to rank j of the other hosts, and each rank
 * hands what it has received to the ranks of its host. So only ranks with the same j exchange messages.
 *
 * Each hop is a separate plan over a child group: "inside" over shared memory, "between" over messages.
 * Reductions and gathers have one of each, because plans take operations in the same order on all ranks, and
 * second hops begin when first hops have ended, which differs from rank to rank. An operation of the caller's
 * plan begins operations of the two hops one after the other; only its numbers, marks and rounds are kept
 * there. Inside a host a bucket is cut into H, one for each host of owners: rank j's range in part h' of
 * bucket b is that of rank h' * k + j in bucket b, so both are described by the same borders.
 *
 * The tree is the same with one hop and with two, so fp32 sums have the same bits. A chain over lane numbers
 * (clt_lane_split) has no sums of a host, because what it adds to a lane is the sum of all lanes before it.
 * There reductions have one hop, a plan over messages between all ranks; gathers have two. */
#ifndef CLT_HOSTS_H
#define CLT_HOSTS_H

#include "collectives/clt_exchange.h"

/* Sets p->per_host. Collective. */
clt_status clt_hosts_look(clt_reduce_plan *p);
/* Moves the operations on; clt_exchange_pump calls it. */
clt_status clt_hosts_advance(clt_reduce_plan *p);
/* As clt_exchange_own_work. */
clt_mark *clt_hosts_own_work(const clt_reduce_plan *p);
/* Fills in the hops' rounds beside `now`, a round of p, which follows `before`. */
void clt_hosts_list(clt_reduce_plan *p, const clt_exchange_round *before, const clt_exchange_round *now);
/* Bytes that this rank has sent to other hosts. */
uint64_t clt_hosts_sent(const clt_reduce_plan *p);
/* As clt_reduce_plan_bytes, with `each` ranks on a host. */
uint64_t clt_hosts_bytes(const clt_shards *shards, const clt_lane_split *split, int each, bool bf16,
                         bool shares_host);

#endif
