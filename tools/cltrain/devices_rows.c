#include "tools/cltrain/devices_rows.h"

#include <string.h>

#include "runtime/base/clt_json.h"

static bool is_fast(const clt_variant *v) {
    return strstr(v->requires, "numerics=fast") != NULL;
}

/* The row of this device for a row of the table. */
static const clt_variant *here(clt_ops *ops, const clt_variant *v) {
    int n;
    const clt_variant *all = clt_variant_all(ops, v->op, &n);
    for (int i = 0; i < n; i++)
        if (!strcmp(all[i].id, v->id)) return &all[i];
    return v; /* not reached: both come from one table */
}

/* --- text --- */

/* Rows before the first usable one, with neighbours that lack the same on one line. */
static void print_faster(clt_ops *ops, const clt_variant *row, int n, const char *bar) {
    char *before = NULL;
    for (int i = 0; i < n; i++) {
        char *lacks = clt_variant_why_not(ops, here(ops, &row[i]));
        if (!lacks) break;
        if (before && !strcmp(before, lacks))
            printf(", %s", row[i].id);
        else
            printf("%s%s%32swithout%s: %s", before ? "\n" : "", bar, "", lacks, row[i].id);
        clt_free(before);
        before = lacks;
    }
    if (before) putchar('\n');
    clt_free(before);
}

void devices_print_rows(clt_ops *ops, const char *bar) {
    const char *op;
    printf("%s      rows          kernels that run here, best first (* only with numerics: fast), and what\n"
           "%s                    faster ones lack; shapes and a check in the run decide among them\n",
           bar, bar);
    for (int i = 0; (op = clt_variant_op(ops, i)); i++) {
        int usable, n;
        const clt_variant *v = clt_ops_variants(ops, op, &usable);
        clt_variant *row;
        printf("%s          %-20s", bar, op);
        for (int j = 0; j < usable; j++) printf("%s%s%s", j ? ", " : "", v[j].id, is_fast(&v[j]) ? "*" : "");
        puts(usable ? "" : "none");
        n = clt_variant_rows(op, &row);
        print_faster(ops, row, n, bar);
        clt_free(row);
    }
}

/* --- JSON --- */

static void json_row(clt_ops *ops, const clt_variant *v, clt_str *b) {
    char *lacks = clt_variant_why_not(ops, v), *at = NULL;
    clt_str_add(b, "{\"id\":");
    clt_json_escape(b, v->id);
    clt_str_add(b, ",\"file\":");
    clt_json_escape(b, v->file);
    clt_str_addf(b, ",\"usable\":%s,\"fast\":%s,\"lacks\":[", lacks ? "false" : "true",
                 is_fast(v) ? "true" : "false");
    const char *comma = "";
    for (char *w = lacks ? strtok_r(lacks, " ", &at) : NULL; w; w = strtok_r(NULL, " ", &at)) {
        clt_str_add(b, comma);
        clt_json_escape(b, w);
        comma = ",";
    }
    clt_str_add(b, "]}");
    clt_free(lacks);
}

void devices_json_rows(clt_ops *ops, clt_str *b) {
    const char *op;
    clt_str_add(b, "{");
    for (int i = 0; (op = clt_variant_op(ops, i)); i++) {
        clt_variant *row;
        const int n = clt_variant_rows(op, &row);
        clt_str_addf(b, "%s\"%s\":[", i ? "," : "", op);
        for (int j = 0; j < n; j++) {
            if (j) clt_str_add(b, ",");
            json_row(ops, here(ops, &row[j]), b);
        }
        clt_str_add(b, "]");
        clt_free(row);
    }
    clt_str_add(b, "}");
}
