#include <string.h>

#include "runtime/checkpoint/clt_pickle.h"

bool clt_pickle_is_text(const clt_pickle_value *v, const char *text) {
    return v->kind == CLT_PICKLE_TEXT && v->text.n == strlen(text) && memcmp(v->text.s, text, v->text.n) == 0;
}

const clt_pickle_value *clt_pickle_get(const clt_pickle_value *dict, const char *key) {
    if (!dict || dict->kind != CLT_PICKLE_DICT) return NULL;
    for (size_t i = dict->list.n; i >= 2; i -= 2)
        if (clt_pickle_is_text(dict->list.item[i - 2], key)) return dict->list.item[i - 1];
    return NULL;
}

bool clt_pickle_as_int(const clt_pickle_value *v, int64_t *out) {
    if (!v) return false;
    if (v->kind == CLT_PICKLE_INT) *out = v->integer;
    if (v->kind == CLT_PICKLE_BOOL) *out = v->truth;
    if (v->kind != CLT_PICKLE_FLOAT) return v->kind == CLT_PICKLE_INT || v->kind == CLT_PICKLE_BOOL;
    if (!(v->real >= -0x1p53 && v->real <= 0x1p53) || v->real != (double)(int64_t)v->real) return false;
    *out = (int64_t)v->real;
    return true;
}
