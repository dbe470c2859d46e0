/* sim: simulates operations on queues, without data. An operation waits for others and for its queue; a queue
 * runs one operation at a time, first the one that has been ready longest, then the one that was added first.
 * Operations that move data through the host's memory share its bandwidth: if all that run need more than it
 * has, all of them slow down by the same factor.
 *
 *     sim *s = sim_create(QUEUES, 170e9);
 *     int copy = sim_add(s, OUT, 0.5, 17e9, "copy out");
 *     sim_after(s, sim_add(s, IN, 0.4, 17e9, "copy in"), copy);
 *     sim_run(s);
 *     double took = sim_ops(s, &n)[n - 1].end; */
#ifndef CLBENCH_SIM_H
#define CLBENCH_SIM_H

#include "runtime/base/clt_base.h"

typedef struct sim sim;

enum { SIM_MOST_QUEUES = 8, SIM_DELAY = -1 /* instead of a queue: any number at the same time */ };

typedef struct {
    char name[40];
    int queue;
    double seconds;    /* alone */
    double bytes;      /* through the host's memory */
    double start, end; /* seconds; after sim_run */
} sim_op;

/* queues: at most SIM_MOST_QUEUES. host: bytes per second of the host's memory; 0: unlimited. */
sim *sim_create(int queues, double host);
void sim_destroy(sim *s);
/* Adds an operation and returns its number, counted from 0. If it moves bytes, it takes at least bytes /
 * host.
 */
int sim_add(sim *s, int queue, double seconds, double bytes, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Operation `op` starts after `before` has ended. before < 0: nothing. */
void sim_after(sim *s, int op, int before);
/* Runs all operations from time 0; once. Operations that wait for each other in a circle never run: their
 * number is returned, 0 if all have run. */
int sim_run(sim *s);
/* The n operations, by number. */
const sim_op *sim_ops(const sim *s, int *n);
/* Seconds of [from, to) in which every queue of the bit mask `busy` ran an operation and no queue of `idle`
 * did. */
double sim_time(const sim *s, double from, double to, unsigned busy, unsigned idle);

#endif
