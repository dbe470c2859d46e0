/* launch_run: runs the command line of a launcher and supervises the ranks: passes signals to them, detects
 * ranks that died, kills what does not exit, and drops Open MPI's messages about ends that cltrain reports
 * itself. */
#ifndef CLTRAIN_LAUNCH_RUN_H
#define CLTRAIN_LAUNCH_RUN_H

#include "runtime/base/clt_base.h"

typedef struct {
    char **argv;       /* ends with NULL; argv[0] is a full path */
    const char *dir;   /* CLTRAIN_LAUNCH_DIR: the ranks write process ids and exit codes there */
    const char *hosts; /* the host file, or NULL */
    int ranks;
    bool elsewhere; /* ranks may run on other hosts */
    bool forwards;  /* the launcher passes signals to its ranks itself (srun) */
    bool deaf;      /* block the three signals in it: Open MPI's mpirun kills its ranks a second after one */
    bool filter;    /* filter Open MPI's messages out of its stderr */
} clt_launch_run_params;

/* Installs the signal handlers. Signals that arrive before the job starts are passed to its ranks. */
void clt_launch_run_signals(void);
/* Runs the job to its end. Returns the exit code of the lowest rank that failed (75 only if no rank has
 * another code), else the launcher's; 130 after a second SIGINT. */
int clt_launch_run(const clt_launch_run_params *p);
/* Whether a signal was received since clt_launch_run_signals. */
bool clt_launch_run_asked(void);

/* Copies text to stderr line by line, except Open MPI's boxes (texts between two lines of dashes) about
 * processes that exited or aborted, and keeps what they say. flush also copies an incomplete line. */
typedef struct {
    clt_str line, box;
    bool boxed;
    bool said;  /* something was copied */
    bool ended; /* a box was dropped */
    bool named; /* a rank has printed which rank is gone */
    struct {
        int rank, signal; /* signal 0: no box said that a signal ended a rank */
        long pid;
        char node[64];
    } death;
} clt_launch_filter;
void clt_launch_filter_add(clt_launch_filter *f, const char *text, size_t n);
void clt_launch_filter_flush(clt_launch_filter *f);
void clt_launch_filter_end(clt_launch_filter *f);

#endif
