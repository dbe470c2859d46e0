/* clt_ops_state: what a clt_ops holds. Private to clt_ops.c and clt_variant*.c. */
#ifndef CLT_OPS_STATE_H
#define CLT_OPS_STATE_H

#include "runtime/ops/clt_variant.h"

/* The last one belongs to clt_op_columns.c, whose data there outlives a call. */
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

/* The text of a file of the cache folder (malloc'ed). false, and no message: there is none, or it is larger
 * than `most`, so that this program cannot have written it. */
bool clt_ops_cached_text(const char *path, size_t most, char **text, size_t *bytes);

/* Adds the table `op` from the text of a .vt file; an invalid line is CLT_FAIL and named. */
clt_status clt_variant_add_table(clt_ops *ops, const char *op, const char *text);
/* Reads every table and CLTRAIN_VARIANT; clt_variant_free_tables releases them. */
clt_status clt_variant_load_tables(clt_ops *ops);
void clt_variant_free_tables(clt_ops *ops);
/* The words of `requires` that do not hold here, as " a b"; the caller frees it. Empty: the row is usable. */
clt_status clt_variant_find_lacking(const clt_ops *ops, const clt_variant *v, clt_str *lacking);
/* The rest of the word of `requires` that starts with `name` ("lib="); "" without such a word, or if it is
 * too long. */
void clt_variant_required(const clt_variant *v, const char *name, char value[96]);
/* What distinguishes versions of a library that cannot be asked for theirs: its file; the caller frees it. */
char *clt_variant_library_version(const char *name);

/* Fills v->options from v->params: "MR=8,NR=32" -> " -DMR=8 -DNR=32". Refuses what is not NAME=INTEGER, and a
 * name that occurs twice. */
clt_status clt_variant_make_options(clt_variant *v, int line);
/* Refuses a table with a param that neither the host nor its row's kernel text reads: a misspelt one would
 * silently leave the row with a default. */
clt_status clt_variant_params_are_read(const clt_variant_table *t);

#endif
