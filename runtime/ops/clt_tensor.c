#include "runtime/ops/clt_tensor.h"

#include <string.h>

#define ROW(id, name, word, bytes, scaled, unit, least, map)                                                 \
    [CLT_##id] = {name, #word, bytes, scaled, unit, least, map},
const clt_dtype_row clt_dtype_table[CLT_DTYPE_COUNT] = {CLT_DTYPES(ROW)};
#undef ROW

const char *clt_dtype_name(clt_dtype t) {
    return (unsigned)t < CLT_DTYPE_COUNT ? clt_dtype_table[t].name : "unknown";
}

bool clt_dtype_find(const char *name, clt_dtype *out) {
    for (int i = 0; i < CLT_DTYPE_COUNT; i++)
        if (!strcmp(clt_dtype_table[i].name, name)) {
            *out = (clt_dtype)i;
            return true;
        }
    return false;
}

const char *clt_dtype_names(uint32_t set, char out[CLT_DTYPE_NAMES]) {
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < CLT_DTYPE_COUNT; i++)
        if (clt_dtype_in((clt_dtype)i, set))
            n += (size_t)snprintf(out + n, CLT_DTYPE_NAMES - n, "%s%s", n ? ", " : "",
                                  clt_dtype_table[i].name);
    return out;
}

/* --- checks --- */

static clt_status check_type(const char *op, uint32_t types, const char *name, const clt_tensor *t) {
    char names[CLT_DTYPE_NAMES];
    if ((unsigned)t->type >= CLT_DTYPE_COUNT || !clt_dtype_in(t->type, types))
        return clt_error(CLT_FAIL, "%s: %s is of type %s; supported: %s", op, name, clt_dtype_name(t->type),
                         clt_dtype_names(types, names));
    if (clt_dtype_table[t->type].scaled != (t->scale != NULL))
        return clt_error(CLT_FAIL, "%s: %s is of type %s, which %s, and comes with%s", op, name,
                         clt_dtype_name(t->type), t->scale ? "has no scales" : "needs scales",
                         t->scale ? " some" : "out");
    return CLT_OK;
}

clt_status clt_tensor_check_types(const char *op, uint32_t types, const clt_tensor_named *list, int n) {
    for (int i = 0; i < n; i++)
        if (clt_tensor_present(list[i].t)) CLT_TRY(check_type(op, types, list[i].name, &list[i].t));
    return CLT_OK;
}

clt_status clt_tensor_check_one_type(const char *op, uint32_t types, const clt_tensor_named *list, int n) {
    const clt_tensor_named *first = NULL;
    CLT_TRY(clt_tensor_check_types(op, types, list, n));
    for (int i = 0; i < n; i++) {
        if (!clt_tensor_present(list[i].t)) continue;
        if (!first) first = &list[i];
        if (list[i].t.type != first->t.type)
            return clt_error(CLT_FAIL, "%s: %s is of type %s, but %s of type %s; they must have one type", op,
                             first->name, clt_dtype_name(first->t.type), list[i].name,
                             clt_dtype_name(list[i].t.type));
    }
    return CLT_OK;
}

clt_status clt_tensor_check_dense(const char *op, int64_t cols, const clt_tensor_named *list, int n) {
    for (int i = 0; i < n; i++)
        if (clt_tensor_present(list[i].t) && list[i].t.ld != cols)
            return clt_error(CLT_FAIL, "%s: rows of %s are %lld apart but %lld long; gaps are not supported",
                             op, list[i].name, (long long)list[i].t.ld, (long long)cols);
    return CLT_OK;
}

clt_status clt_tensor_check_fits(const char *op, const char *name, const clt_tensor *t, int64_t rows,
                                 int64_t cols) {
    if (!t->ref.buf) return clt_error(CLT_FAIL, "%s: %s is missing", op, name);
    if (rows > 1 && t->ld < cols)
        return clt_error(CLT_FAIL, "%s: rows of %s are %lld apart but %lld long", op, name, (long long)t->ld,
                         (long long)cols);
    const uint64_t have = clt_buffer_bytes(t->ref.buf) / clt_dtype_bytes(t->type);
    const uint64_t need = (uint64_t)(rows - 1) * (uint64_t)t->ld + (uint64_t)cols;
    if (t->ref.off > have || need > have - t->ref.off)
        return clt_error(
            CLT_FAIL, "%s: %s [%lld, %lld] from element %llu on does not fit its buffer of %llu elements", op,
            name, (long long)rows, (long long)cols, (unsigned long long)t->ref.off, (unsigned long long)have);
    return CLT_OK;
}
