/* clt_ops_state: what a clt_ops holds. Private to clt_ops.c and clt_variant*.c. */
#ifndef CLT_OPS_STATE_H
#define CLT_OPS_STATE_H

#include "runtime/ops/clt_variant.h"

/* The last one is clt_op_columns.c's alone: what it holds outlives a call. */
enum { CLT_SCRATCH_SLOTS = 5, CLT_SCRATCH_LATER = 4 };

/* The rows of one .vt file. `row` holds those that can be used here first, in the order of the file, then the
 * others. */
typedef struct {
    char op[32];
    clt_variant *row;
    int rows, usable;
    int forced; /* index into row, -1: free choice */
} clt_variant_table;

struct clt_ops {
    clt_device *dev;
    clt_ops_params params;
    clt_buffer *scratch[CLT_SCRATCH_SLOTS];
    clt_buffer *counters;
    struct clt_later *later; /* sums that wait for clt_op_sums_now; NULL: there were none */
    clt_variant_table *table;
    int tables;
    clt_variant **special; /* rows with more options (clt_variant_pick_with) */
    int specials;
    int checked;           /* clt_variants_checked */
    struct clt_tune *tune; /* clt_tune.c; NULL: off */
    bool may_stop;         /* clt_ops_let_stop */
    char reason[512];      /* why the last check failed (clt_variant_fail) */
};

/* The text of a file of the cache folder (malloc'ed), without a word if there is none, or none that this
 * program can have written: it is larger than `most`. */
bool clt_ops_cached_text(const char *path, size_t most, char **text, size_t *bytes);

/* Adds the table `op` from the text of a .vt file; a damaged one is CLT_FAIL and named with its line. */
clt_status clt_variant_add_table(clt_ops *ops, const char *op, const char *text);
/* Reads every table and CLTRAIN_VARIANT; clt_variant_free_tables releases them. */
clt_status clt_variant_load_tables(clt_ops *ops);
void clt_variant_free_tables(clt_ops *ops);

/* Fills v->options from v->params: "MR=8,NR=32" -> " -DMR=8 -DNR=32". Refuses what is not NAME=INTEGER, and a
 * name that comes twice. */
clt_status clt_variant_make_options(clt_variant *v, int line);
/* Refuses a table with a param that neither the host nor its row's kernel text reads: misspelt, it would
 * leave the row with a default, unsaid. */
clt_status clt_variant_params_are_read(const clt_variant_table *t);

#endif
