#include <string.h>

#include "runtime/checkpoint/clt_pickle.h"

static void number(clt_str *s, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) clt_str_addn(s, &(char){(char)(v >> (8 * i))}, 1);
}

void clt_pickle_put_begin(clt_str *s) {
    clt_str_addn(s, "\x80\x02", 2);
}
void clt_pickle_put_end(clt_str *s) {
    clt_str_add(s, ".");
}
void clt_pickle_put_dict(clt_str *s) {
    clt_str_add(s, "}(");
}
void clt_pickle_put_items(clt_str *s) {
    clt_str_add(s, "u");
}
void clt_pickle_put_list(clt_str *s) {
    clt_str_add(s, "](");
}
void clt_pickle_put_appends(clt_str *s) {
    clt_str_add(s, "e");
}
void clt_pickle_put_bool(clt_str *s, bool v) {
    clt_str_add(s, v ? "\x88" : "\x89");
}
void clt_pickle_put_none(clt_str *s) {
    clt_str_add(s, "N");
}

void clt_pickle_put_text(clt_str *s, const char *text) {
    clt_str_add(s, "X");
    number(s, strlen(text), 4);
    clt_str_add(s, text);
}

/* BININT has 32 bits, LONG1 as many bytes as it says. */
void clt_pickle_put_int(clt_str *s, int64_t v) {
    const bool small = v == (int32_t)v;
    clt_str_addn(s, small ? "J" : "\x8a\x08", small ? 1 : 2);
    number(s, (uint64_t)v, small ? 4 : 8);
}

void clt_pickle_put_tensor(clt_str *s, const char *key, uint64_t count, int dims, const uint64_t *shape) {
    clt_str_add(s, "ctorch._utils\n_rebuild_tensor_v2\n((");
    clt_pickle_put_text(s, "storage");
    clt_str_add(s, "ctorch\nFloatStorage\n");
    clt_pickle_put_text(s, key);
    clt_pickle_put_text(s, "cpu");
    clt_pickle_put_int(s, (int64_t)count);
    clt_str_add(s, "tQ");
    clt_pickle_put_int(s, 0);
    clt_str_add(s, "(");
    for (int d = 0; d < dims; d++) clt_pickle_put_int(s, (int64_t)shape[d]);
    clt_str_add(s, "t(");
    for (int d = 0; d < dims; d++) {
        uint64_t stride = 1;
        for (int i = d + 1; i < dims; i++) stride *= shape[i];
        clt_pickle_put_int(s, (int64_t)stride);
    }
    clt_str_add(s, "t");
    clt_pickle_put_bool(s, false);
    clt_str_add(s, "ccollections\nOrderedDict\n)RtR");
}
