/* launch_run: runs a launcher's command line and looks after its ranks: hands them signals, notices the ones
 * that are gone, ends what does not end, and keeps Open MPI's explanations of what cltrain has explained off
 * the screen. */
#ifndef CLTRAIN_LAUNCH_RUN_H
#define CLTRAIN_LAUNCH_RUN_H

#include "runtime/base/clt_base.h"

typedef struct {
    char **argv;       /* NULL at the end; argv[0] is a full path */
    const char *dir;   /* CLTRAIN_LAUNCH_DIR: where ranks leave process numbers and exit codes */
    const char *hosts; /* the host file, or NULL */
    int ranks;
    bool elsewhere; /* ranks may run on other hosts */
    bool forwards;  /* the launcher hands signals to its ranks itself (srun) */
    bool deaf;      /* the three signals are kept from it: Open MPI's mpirun kills ranks a second after one */
    bool filter;    /* its stderr holds Open MPI's boxed texts */
} clt_launch_run_params;

/* From now on signals are kept for the ranks, also for those of a job that is still to start. */
void clt_launch_run_signals(void);
/* Runs it to its end. Returns the exit code of the lowest rank that failed (75 only if no rank has another
 * one), else the launcher's; 130 after a second SIGINT. */
int clt_launch_run(const clt_launch_run_params *p);
/* Whether a signal has come since the first job of this process began. */
bool clt_launch_run_asked(void);

/* Copies text to stderr line by line, without boxes (texts between two lines of dashes) about a process that
 * has ended or aborted. `flush`: also what is not a whole line yet. */
typedef struct {
    clt_str line, box;
    bool boxed;
    bool said; /* something was copied */
} clt_launch_filter;
void clt_launch_filter_add(clt_launch_filter *f, const char *text, size_t n);
void clt_launch_filter_flush(clt_launch_filter *f);
void clt_launch_filter_end(clt_launch_filter *f);

#endif
