/* The parts of `cltrain data` that live in files of their own. argv[0] is the word after `data`; the result
 * is the program's exit code. */
#ifndef CLTRAIN_DATA_COMMANDS_H
#define CLTRAIN_DATA_COMMANDS_H

#include "runtime/base/clt_base.h"

int data_batches(int argc, char **argv);
int data_convert(int argc, char **argv);
int data_fetch(int argc, char **argv);
int data_order(int argc, char **argv);
/* `data order --spec FILE`: prints the answer to the case in a JSON file, or {"error": TEXT}. */
clt_status data_order_spec(const char *path);
/* `data order CONFIG.yaml [key=value ...]`: prints what training on `ranks` ranks sees in an epoch. args[0]
 * is the file. */
clt_status data_order_config(const char *const *args, size_t n, int ranks, int64_t epoch);
int data_tokenize(int argc, char **argv);
int data_train_tokenizer(int argc, char **argv);

#endif
