/* clt_run_tokenizer: the tokenizer of a run travels with it. A run copies the files of its tokenizer into the
 * folder `tokenizer` beside its checkpoints, and what reads a checkpoint later finds them there. */
#ifndef CLT_RUN_TOKENIZER_H
#define CLT_RUN_TOKENIZER_H

#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/data/clt_tokenizer.h"

/* Copies the files of the tokenizer `source` (clt_tokenizer_open) to FOLDER/tokenizer. No effect for "bytes"
 * and names of a hub. CLT_IO. */
clt_status clt_run_tokenizer_keep(const char *source, const char *folder);

/* Opens the tokenizer of a model: that of the Hugging Face folder; else the one in the folder `tokenizer` of
 * the checkpoint or of its run; else tokenizer.name of the checkpoint's configuration. A source without any
 * is read as bytes, with a warning. CLT_BAD_CONFIG: it is on a hub, or errors of clt_tokenizer_open. */
clt_status clt_run_tokenizer_open(const clt_weight_source *src, clt_tokenizer **out);
/* The same for a run whose configuration names the tokenizer `name`. */
clt_status clt_run_tokenizer_named(const char *name, clt_tokenizer **out);

#endif
