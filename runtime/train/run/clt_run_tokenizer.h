/* clt_run_tokenizer: the tokenizer of a run travels with it. A run copies the files of its tokenizer into the
 * folder `tokenizer` beside its checkpoints, and what reads a checkpoint later finds them there. */
#ifndef CLT_RUN_TOKENIZER_H
#define CLT_RUN_TOKENIZER_H

#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/data/clt_tokenizer.h"

/* Copies the files of the tokenizer `source` (clt_tokenizer_open) to FOLDER/tokenizer. No effect for "bytes"
 * and names of a hub. CLT_IO. */
clt_status clt_run_tokenizer_keep(const char *source, const char *folder);

/* The tokenizer of a model, as clt_tokenizer_open takes it (clt_free): that of the Hugging Face folder; else
 * the one in the folder `tokenizer` of the checkpoint or of its run; else tokenizer.name of the checkpoint's
 * configuration. A source without any is read as bytes, with a warning. */
char *clt_run_tokenizer_of(const clt_weight_source *src);
/* Opens it. CLT_BAD_CONFIG: it is the name of one on a hub; errors of clt_tokenizer_open. */
clt_status clt_run_tokenizer_open(const char *name, clt_tokenizer **out);

#endif
