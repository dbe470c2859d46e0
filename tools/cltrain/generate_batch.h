/* generate_batch: `cltrain generate --prompts`: continues the prompts of a JSONL file. */
#ifndef CLTRAIN_GENERATE_BATCH_H
#define CLTRAIN_GENERATE_BATCH_H

#include "runtime/train/run/clt_generate.h"

/* Continues `prompt` of every line of the file, p->texts of them together. Prints a JSON object with prompt
 * and text for each, in the file's order. */
clt_status generate_batch(const clt_generate_params *p, const char *file);

#endif
