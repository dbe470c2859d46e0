/* clt_ops_state: the fields of a clt_ops. Private to clt_ops.c, clt_tune.c and clt_variant*.c. */
#ifndef CLT_OPS_STATE_H
#define CLT_OPS_STATE_H

#include "runtime/ops/clt_variant.h"

/* clt_op_columns.c owns the last one: its data there outlives a call. */
enum { CLT_SCRATCH_SLOTS = 5, CLT_SCRATCH_LATER = 4 };

/* The rows of one .vt file: first those that can run here, in the order of the file, then the others. */
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
    struct clt_later *later; /* sums that wait for clt_op_sums_now; NULL: none so far */
    clt_variant_table *table;
    int tables;
    clt_variant **special; /* rows with options of a model (clt_variant_pick_for) */
    int specials;
    int checked;           /* clt_variants_checked */
    struct clt_tune *tune; /* clt_tune.c; NULL: off */
    bool may_stop;         /* clt_ops_let_stop */
    char reason[512];      /* why the last check failed (clt_variant_fail) */
};

/* The text of a file of the cache folder (malloc'ed). false, without a message: the file is absent, or larger
 * than `most`, so that this program did not write it. */
bool clt_ops_cached_text(const char *path, size_t most, char **text, size_t *bytes);

/* Adds the table `op` from the text of a .vt file; CLT_FAIL, and a message naming the line, if one is
 * invalid. */
clt_status clt_variant_add_table(clt_ops *ops, const char *op, const char *text);
/* Reads every table and CLTRAIN_VARIANT; clt_variant_free_tables releases them. */
clt_status clt_variant_load_tables(clt_ops *ops);
void clt_variant_free_tables(clt_ops *ops);
/* The words of `requires` that do not hold here, as " a b"; the caller frees it. Empty: the row is usable. */
clt_status clt_variant_find_lacking(const clt_ops *ops, const clt_variant *v, clt_str *lacking);
/* The rest of the word of `requires` that starts with `name` ("lib="); "" without such a word, or if it is
 * too long. */
void clt_variant_required(const clt_variant *v, const char *name, char value[96]);
/* What identifies the version of a library that does not report one: its file. The caller frees it. */
char *clt_variant_library_version(const char *name);

/* Fills v->options from v->params: "MR=8,NR=32" -> " -DMR=8 -DNR=32". Refuses a word that is not
 * NAME=INTEGER, and a name that occurs twice. */
clt_status clt_variant_make_options(clt_variant *v, int line);
/* Refuses a table with a param that neither the host nor its row's kernel text reads: a misspelt param would
 * silently leave the row with its default. */
clt_status clt_variant_params_are_read(const clt_variant_table *t);

#endif
