/* eval_table: the results of `cltrain eval` as Markdown tables in LLM Foundry's form: accuracies of tasks,
 * and the scores of eval_gauntlet. */
#ifndef EVAL_TABLE_H
#define EVAL_TABLE_H

#include "runtime/train/run/clt_trainer.h"

typedef struct eval_table eval_table;

eval_table *eval_table_create(void);
void eval_table_free(eval_table *t);

/* Members of clt_eval_report; ctx is the table. Rows of one set of items come one behind the other. */
void eval_table_accuracy(void *ctx, const clt_eval_accuracy *row);
void eval_table_score(void *ctx, const char *model, const char *name, double value);

/* Appends the tables: scores if there are any, then accuracies, ordered as Foundry orders them: by number of
 * examples in the order of their first appearance, then by task. */
void eval_table_print(const eval_table *t, clt_str *out);

#endif
