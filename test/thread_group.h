/* thread_group: ranks that are threads of the test, so that a test of several ranks needs neither a launcher
 * nor shared memory. Groups can be split. They have no deadlines. */
#ifndef THREAD_GROUP_H
#define THREAD_GROUP_H

#include "collectives/clt_group.h"

enum { TG_MAX_RANKS = 8 };

/* Runs `run` once per rank, in a group of n ranks, and waits for all. `run` may not use cmocka's asserts,
 * which leave the thread by longjmp. */
void tg_run(int n, void (*run)(clt_group *g, void *ctx), void *ctx);
/* The same with simulated hosts: rank r is on host host[r], any number. */
void tg_run_on_hosts(int n, const int *host, void (*run)(clt_group *g, void *ctx), void *ctx);

#endif
