/* train_args: the command line of `cltrain train`, read in one place: by the command itself, and by a launch
 * that has to know what it starts (cltrain launch --hop). */
#ifndef CLTRAIN_TRAIN_ARGS_H
#define CLTRAIN_TRAIN_ARGS_H

#include "runtime/train/run/clt_trainer.h"

typedef struct {
    clt_config *cfg;
    clt_run_options opt; /* its texts point into argv */
} clt_train_args;

/* argv[0] is "train". Returns -1 to go on; otherwise the program ends with the returned exit code, whatever
 * had to be printed is printed. Either way clt_train_args_free. */
int clt_train_args_read(int argc, char **argv, clt_train_args *out);
void clt_train_args_free(clt_train_args *a);

#endif
