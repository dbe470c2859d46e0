/* clt_finetune_format: lines that do not have the columns prompt and response, or messages. The key
 * preprocessing_fn maps two columns, or names a function of LLM Foundry that makes prompt and response, or
 * messages, of a line; the functions of LLM Foundry itself are computed here. */
#ifndef CLT_FINETUNE_FORMAT_H
#define CLT_FINETUNE_FORMAT_H

#include <jansson.h>

#include "runtime/data/finetune/clt_finetune.h"

/* Whether `name` is a function that is computed here: a name under which LLM Foundry registers one, which is
 * that of a data set, or its import path ("llmfoundry.data.finetuning.tasks:NAME"). NULL is allowed. */
bool clt_finetune_function_exists(const char *name);
/* The registered names, comma-separated, for messages. The caller frees it. */
char *clt_finetune_function_names(void);

/* The object that the format makes of the object of a line; the caller owns it (json_decref). Without a
 * function and columns it is the line itself. CLT_BAD_DATA, which names `where` and the column: a column is
 * missing or has another type; CLT_NO_MEMORY. The rules are those of LLM Foundry 0.22,
 * llmfoundry/data/finetuning/tasks.py and scripts/train/finetune_example/preprocessing.py. */
clt_status clt_finetune_reformat(const clt_finetune_format *f, json_t *line, const char *where, json_t **out);

#endif
