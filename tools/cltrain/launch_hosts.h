/* launch_hosts: which slots of which hosts a launch uses, in the forms of the `deepspeed` launcher: a host
 * file with lines `HOST slots=N`, and --include or --exclude with `HOST[:SLOT,SLOT...]@HOST...`. A slot is a
 * rank; slot i takes device i of its host (in turn if there are fewer). */
#ifndef CLTRAIN_LAUNCH_HOSTS_H
#define CLTRAIN_LAUNCH_HOSTS_H

#include "runtime/base/clt_base.h"

enum { CLT_LAUNCH_MOST_SLOTS = 1024 }; /* of one host */

typedef struct {
    char *name;
    int *slot; /* [n] in the order of the ranks */
    int n;
} clt_launch_host;

typedef struct {
    clt_launch_host *v;
    int n;
} clt_launch_hosts;

typedef struct {
    const char *include, *exclude; /* NULL: not given */
    int64_t nodes, slots;          /* --num_nodes, --num_gpus; 0: not given */
} clt_launch_filter_words;

/* Reads a host file; `what` names it. Empty lines and lines that start with # are skipped. CLT_BAD_CONFIG for
 * any other line without slots, a host that is named twice, and a file without hosts. */
clt_status clt_launch_hosts_parse(const char *text, const char *what, clt_launch_hosts *out);
/* This host alone, called localhost, with so many slots. */
void clt_launch_hosts_local(int slots, clt_launch_hosts *out);
/* Applies the filter: include keeps only what it names, with slots in its order; exclude removes it; then the
 * first `nodes` hosts, with slots 0 to `slots` - 1. Hosts keep their order, and those without slots are
 * dropped. CLT_USAGE for include and exclude in one, either with nodes or slots, a host or slot that is
 * unknown, and if nothing is left. */
clt_status clt_launch_hosts_apply(clt_launch_hosts *h, const clt_launch_filter_words *f);
int clt_launch_hosts_ranks(const clt_launch_hosts *h);
/* "0,2,0,1": the slot of each rank; NULL if every host uses its first slots in order. The caller frees it. */
char *clt_launch_hosts_slots(const clt_launch_hosts *h);
/* The hosts for mpirun: `HOST slots=N` lines, or `HOST:N` for MPICH's. The caller frees it. */
char *clt_launch_hosts_text(const clt_launch_hosts *h, bool mpich);
void clt_launch_hosts_free(clt_launch_hosts *h);

#endif
