/* train_args: parses the command line of `cltrain train`, for the command itself and for `cltrain launch
 * --hop`, which checks it before the first leg. */
#ifndef CLTRAIN_TRAIN_ARGS_H
#define CLTRAIN_TRAIN_ARGS_H

#include "runtime/train/run/clt_trainer.h"

typedef struct {
    clt_config *cfg;
    clt_run_options opt; /* its strings point into argv */
} clt_train_args;

/* argv[0] is "train". Returns -1 if a run must be started. Otherwise everything is printed and the caller
 * exits with the returned code. Call clt_train_args_free in both cases. */
int clt_train_args_read(int argc, char **argv, clt_train_args *out);
void clt_train_args_free(clt_train_args *a);

/* The override that --deepspeed PATH stands for. The caller frees it. */
char *clt_train_deepspeed_override(const char *path);

#endif
