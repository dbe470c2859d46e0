/* clt_ops_state: the fields of a clt_ops. Private to clt_ops.c, clt_tune.c and clt_variant*.c. */
#ifndef CLT_OPS_STATE_H
#define CLT_OPS_STATE_H

#include "runtime/ops/clt_variant.h"

/* Slots of clt_ops_scratch. Slot CLT_SCRATCH_LATER belongs to clt_op_columns.c, whose data in it must survive
 * from one call to the next; the others hold data during one call only. */
enum { CLT_SCRATCH_SLOTS = 5, CLT_SCRATCH_LATER = 4 };

/* The rows of one .vt file: first those that can run here, in the order of the file, then the others. */
typedef struct {
    char op[32];
    clt_variant *row;
    int rows, usable; /* number of all rows; of those that can run here */
    int forced;       /* index into row; -1: no row is forced */
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
    clt_strv disabled;     /* the words of CLTRAIN_DISABLE_ROW */
    int *disabled_rows;    /* by word: number of rows that it leaves out */
    int checked;           /* number of checks that ran (clt_variants_checked) */
    struct clt_tune *tune; /* clt_tune.c; NULL: CLT_TUNE_OFF */
    bool may_stop;         /* clt_ops_let_stop */
    char reason[512];      /* why the last check failed (clt_variant_fail) */
};

/* Reads a file of the cache folder. *text is freed with clt_free. bytes may be NULL. false, without a
 * message: the file is absent or larger than `most` bytes, so that this program did not
 * write it. */
bool clt_ops_cached_text(const char *path, size_t most, char **text, size_t *bytes);

/* Adds the table `op` from the text of a .vt file; CLT_FAIL, and a message naming the line, if one is
 * invalid. */
clt_status clt_variant_add_table(clt_ops *ops, const char *op, const char *text);
/* Reads every table and applies CLTRAIN_VARIANT. clt_variant_free_tables releases the tables, also after a
 * failure. */
clt_status clt_variant_load_tables(clt_ops *ops);
void clt_variant_free_tables(clt_ops *ops);

/* CLTRAIN_DISABLE_ROW: reads the list; whether it names a row; CLT_USAGE if one of its words named none so
 * far. clt_variant_free_disabled releases what was read. */
void clt_variant_read_disabled(clt_ops *ops);
bool clt_variant_is_disabled(clt_ops *ops, const clt_variant *v);
clt_status clt_variant_look_at_disabled(const clt_ops *ops);
void clt_variant_free_disabled(clt_ops *ops);

/* Appends the words of v->requires that do not hold on this device to `lacking`, which starts empty, each
 * after a space (" a b"). Nothing appended: the row is usable. The caller frees `lacking`. */
clt_status clt_variant_find_lacking(const clt_ops *ops, const clt_variant *v, clt_str *lacking);
/* value: what follows `name` ("lib=") in the word of v->requires that starts with it; "" if there is no such
 * word or the rest does not fit. */
void clt_variant_required(const clt_variant *v, const char *name, char value[96]);
/* A text that changes when the library `name` is replaced, for libraries that report no version: it describes
 * the library's file. The caller frees it. */
char *clt_variant_library_version(const char *name);

/* Fills v->options from v->params: "MR=8,NR=32" -> " -DMR=8 -DNR=32". Refuses a word that is not
 * NAME=INTEGER, and a name that occurs twice. */
clt_status clt_variant_make_options(clt_variant *v, int line);
/* Refuses a table with a param that neither the host nor its row's kernel text reads: a misspelt param would
 * silently leave the row with its default. */
clt_status clt_variant_params_are_read(const clt_variant_table *t);

#endif
