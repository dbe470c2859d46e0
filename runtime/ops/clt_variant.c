/* Which row an operation uses: the forced one, else the first in the table's order that passed its check. */
#include "runtime/ops/clt_variant.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/ops/clt_ops_state.h"

static clt_variant_table *find_table(const clt_ops *ops, const char *op) {
    for (int i = 0; i < ops->tables; i++)
        if (!strcmp(ops->table[i].op, op)) return &ops->table[i];
    return NULL;
}

long clt_variant_param(const clt_variant *v, const char *name, long fallback) {
    size_t n = strlen(name);
    for (const char *p = v->params; p; p = strchr(p, ',')) {
        if (*p == ',') p++;
        if (!strncmp(p, name, n) && p[n] == '=') return strtol(p + n + 1, NULL, 0);
    }
    return fallback;
}

clt_variant *clt_ops_variants(clt_ops *ops, const char *op, int *n) {
    clt_variant_table *t = find_table(ops, op);
    *n = t ? t->usable : 0;
    return t ? t->row : NULL;
}

const char *clt_variant_op(const clt_ops *ops, int i) {
    return i < ops->tables ? ops->table[i].op : NULL;
}

const clt_variant *clt_variant_all(const clt_ops *ops, const char *op, int *n) {
    const clt_variant_table *t = find_table(ops, op);
    *n = t ? t->rows : 0;
    return t ? t->row : NULL;
}

const char *clt_variant_forced(const clt_ops *ops, const char *op) {
    const clt_variant_table *t = find_table(ops, op);
    return t && t->forced >= 0 ? t->row[t->forced].id : NULL;
}

static clt_status unknown_op(const clt_ops *ops, const char *op) {
    clt_str known = {0};
    for (int i = 0; i < ops->tables; i++) clt_str_addf(&known, " %s", ops->table[i].op);
    clt_status st = clt_error(CLT_USAGE, "variant: unknown operation '%s'; operations with variants:%s", op,
                              known.s ? known.s : " none");
    clt_str_free(&known);
    return st;
}

static clt_status cannot_run(const clt_ops *ops, const clt_variant *v) {
    if (v->disabled)
        return clt_error(CLT_USAGE, "variant %s=%s is both forced and left out by CLTRAIN_DISABLE_ROW", v->op,
                         v->id);
    char *lacking = clt_variant_why_not(ops, v);
    clt_status st = clt_error(CLT_USAGE, "variant %s=%s cannot run on this device: it requires %s; unmet:%s",
                              v->op, v->id, v->requires, lacking);
    clt_free(lacking);
    return st;
}

clt_status clt_variant_force(clt_ops *ops, const char *op, const char *id) {
    clt_variant_table *t = find_table(ops, op);
    if (!t) return unknown_op(ops, op);
    if (!id) {
        t->forced = -1;
        return CLT_OK;
    }
    clt_str known = {0};
    for (int i = 0; i < t->rows; i++) {
        const clt_variant *v = &t->row[i];
        if (!strcmp(v->id, id)) {
            clt_str_free(&known);
            if (!v->usable) return cannot_run(ops, v);
            t->forced = i;
            return CLT_OK;
        }
        clt_str_addf(&known, " %s%s", v->id, v->usable ? "" : " (not on this device)");
    }
    clt_status st = clt_error(CLT_USAGE, "variant: %s has no variant '%s'; it has:%s", op, id,
                              known.s ? known.s : " none");
    clt_str_free(&known);
    return st;
}

/* --- picking --- */

/* Row v with `options` after its own; ops keeps it. */
static clt_status specialise(clt_ops *ops, clt_variant *v, const char *options, clt_variant **out) {
    if (!*options) {
        *out = v;
        return CLT_OK;
    }
    size_t n = strlen(v->options), more = strlen(options);
    if (n + more >= sizeof v->options)
        return clt_error(CLT_FAIL, "%s=%s: the build options '%s%s' are too long", v->op, v->id, v->options,
                         options);
    for (int i = 0; i < ops->specials; i++) {
        clt_variant *s = ops->special[i];
        if (!strcmp(s->id, v->id) && !strcmp(s->op, v->op) && !strncmp(s->options, v->options, n) &&
            !strcmp(s->options + n, options)) {
            *out = s;
            return CLT_OK;
        }
    }
    clt_variant *s = clt_malloc(sizeof *s);
    *s = *v;
    memcpy(s->options + n, options, more + 1);
    s->verdict = 0;
    s->rehearsed = false;
    ops->special = clt_realloc(ops->special, (size_t)(ops->specials + 1) * sizeof *ops->special);
    ops->special[ops->specials++] = s;
    *out = s;
    return CLT_OK;
}

clt_status clt_variant_pick(clt_ops *ops, const char *op, clt_variant_check check, void *ctx,
                            const clt_variant **out) {
    const clt_variant_question q = {.op = op, .options = "", .check = check, .call = ctx};
    return clt_variant_pick_for(ops, &q, out);
}

static clt_status verify(clt_ops *ops, const clt_variant_question *q, clt_variant *v) {
    return clt_variant_verify(ops, v, q->check, (void *)(uintptr_t)q->call);
}

clt_status clt_variant_pick_row(clt_ops *ops, const clt_variant_question *q, const char *id,
                                const clt_variant **out) {
    clt_variant_table *t = find_table(ops, q->op);
    *out = NULL;
    if (!t) return unknown_op(ops, q->op);
    for (int i = 0; i < t->usable; i++) {
        clt_variant *v = NULL;
        if (strcmp(t->row[i].id, id) != 0) continue;
        CLT_TRY(specialise(ops, &t->row[i], q->options, &v));
        if (q->takes && !q->takes(v, q->call)) return CLT_OK;
        const clt_status st = q->check ? verify(ops, q, v) : CLT_OK;
        if (clt_variant_says_nothing(st)) return st;
        if (st == CLT_OK) *out = v;
    }
    return CLT_OK;
}

/* Row v if it supports the call and passed its check, else NULL and in *reason why the check failed. */
static clt_status try_row(clt_ops *ops, const clt_variant_question *q, clt_variant *row,
                          const clt_variant **out, const char **reason) {
    clt_variant *v = NULL;
    *out = NULL;
    CLT_TRY(specialise(ops, row, q->options, &v));
    if (q->takes && !q->takes(v, q->call)) return CLT_OK;
    const clt_status st = verify(ops, q, v);
    if (clt_variant_says_nothing(st)) return st;
    if (st == CLT_OK)
        *out = v;
    else
        *reason = v->reason;
    return CLT_OK;
}

/* No row, or not the forced one, can be used. reason: that of the last failed check; NULL if no row supports
 * the call. */
static clt_status cannot_do(const clt_ops *ops, const clt_variant_question *q, const clt_variant_table *t,
                            const char *reason) {
    const char *name = clt_device_get_facts(ops->dev)->name;
    const clt_variant *forced = t->forced >= 0 ? &t->row[t->forced] : NULL;
    char what[128] = "";
    if (q->describe) q->describe(q->call, what, sizeof what);
    const char *of = *what ? " of " : "";
    if (forced && !reason)
        return clt_error(CLT_FAIL,
                         "%s: the forced variant %s does not support a call%s%s: its params (%s) or its body "
                         "exclude it; force another variant or none",
                         q->op, forced->id, of, what, forced->params);
    if (forced)
        return clt_error(CLT_FAIL, "%s: the forced variant %s fails its check on %s: %s", q->op, forced->id,
                         name, reason);
    if (!reason)
        return clt_error(CLT_FAIL, "%s: no kernel variant on %s supports a call%s%s; choose another device%s",
                         q->op, name, of, what,
                         ops->disabled.n ? ", or let CLTRAIN_DISABLE_ROW leave out less" : "");
    return clt_error(
        CLT_FAIL,
        "%s: no kernel variant gives correct results on %s (last reason: %s); choose another device", q->op,
        name, reason);
}

clt_status clt_variant_pick_for(clt_ops *ops, const clt_variant_question *q, const clt_variant **out) {
    clt_variant_table *t = find_table(ops, q->op);
    if (!t) return unknown_op(ops, q->op);
    const char *reason = NULL;
    const int first = t->forced >= 0 ? t->forced : 0, end = t->forced >= 0 ? t->forced + 1 : t->usable;
    for (int i = first; i < end; i++) {
        CLT_TRY(try_row(ops, q, &t->row[i], out, &reason));
        if (*out) return CLT_OK;
    }
    return cannot_do(ops, q, t, reason);
}

clt_status clt_variant_pick_optional(clt_ops *ops, const clt_variant_question *q, const clt_variant **out) {
    clt_variant_table *t = find_table(ops, q->op);
    const char *reason;
    *out = NULL;
    if (!t) return unknown_op(ops, q->op);
    if (t->forced < 0 && clt_device_get_facts(ops->dev)->type == CLT_DEVICE_CPU) return CLT_OK;
    for (int i = 0; i < t->usable && !*out; i++)
        if (t->forced < 0 || t->forced == i) CLT_TRY(try_row(ops, q, &t->row[i], out, &reason));
    return CLT_OK;
}

/* Adds an id unless the comma list has it already. */
static void add_used(clt_str *b, const clt_variant *v) {
    size_t n = strlen(v->id);
    for (const char *s = b->s; *s; s += strcspn(s, ","), s += *s == ',')
        if (strncmp(s, v->id, n) == 0 && (s[n] == ',' || !s[n])) return;
    clt_str_addf(b, "%s%s", b->len ? "," : "", v->id);
}

int clt_variants_checked(const clt_ops *ops) {
    return ops->checked;
}

char *clt_variants_used(const clt_ops *ops) {
    clt_str b = {0};
    clt_str_add(&b, "");
    for (int t = 0; t < ops->tables; t++) {
        const clt_variant_table *table = &ops->table[t];
        clt_str ids = {0};
        clt_str_add(&ids, "");
        for (int i = 0; i < table->rows; i++)
            if (table->row[i].verdict > 0) add_used(&ids, &table->row[i]);
        for (int i = 0; i < ops->specials; i++)
            if (strcmp(ops->special[i]->op, table->op) == 0 && ops->special[i]->verdict > 0)
                add_used(&ids, ops->special[i]);
        if (ids.len) clt_str_addf(&b, "%s%s=%s", b.len ? " " : "", table->op, ids.s);
        clt_str_free(&ids);
    }
    return b.s;
}
