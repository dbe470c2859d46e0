/* data_inputs: the files that `cltrain data` commands read, from files and folders on the command line. */
#ifndef CLTRAIN_DATA_INPUTS_H
#define CLTRAIN_DATA_INPUTS_H

#include "runtime/data/clt_docs.h"

typedef struct {
    clt_strv paths; /* owns the paths of `files` */
    clt_docs_file *files;
    uint64_t bytes;
    bool skipped; /* files of a folder that are not text */
} data_inputs;

/* Whether the file holds one JSON object per line, by its name. */
bool data_is_jsonl(const char *path);
/* Collects files in the order of `inputs`, folders recursively and by name. In folders, hidden files are left
 * out, and, with kind TEXT, files that are not text (a 0 byte near the beginning). guess: files with the
 * name of a JSONL file have that kind. CLT_IO; CLT_BAD_DATA: there is no file. Call
 * data_inputs_free in any case; start from {0}. */
clt_status data_inputs_collect(const clt_strv *inputs, clt_docs_kind kind, bool guess, data_inputs *out);
void data_inputs_free(data_inputs *in);

#endif
