/* The reader of PyTorch's pickles: what it takes, what it refuses, and that it executes nothing. The pickles
 * of PyTorch itself are read by test_universal. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/checkpoint/clt_pickle.h"

/* A pickle in a block of its exact size, so that a sanitizer sees a read past its end. */
static clt_status parse(const char *bytes, size_t n, unsigned flags, void **copy, clt_pickle **out) {
    *copy = clt_malloc(n);
    memcpy(*copy, bytes, n);
    return clt_pickle_parse(*copy, n, flags, "x.pt", out);
}

/* --- refused --- */

typedef struct {
    const char *bytes;
    size_t n;
    const char *message;
} refused;
#define BAD(text, message)                                                                                   \
    { text, sizeof(text) - 1, message }

static const refused programs[] = {
    /* names that are not on the list, by either opcode */
    BAD("\x80\x02"
        "cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
        "names 'os system', which is not a part of tensors"),
    BAD("\x80\x04\x8c\x02os\x8c\x06system\x93.", "byte 14 of the pickle names 'os system'"),
    BAD("\x80\x02"
        "cbuiltins\neval\n.",
        "names 'builtins eval'"),
    BAD("\x80\x02"
        "ctorch._utils\n_rebuild_tensor_v3\n.",
        "_rebuild_tensor_v3"),
    BAD("\x80\x02"
        "ca\x1b[31m\nb\n.",
        "names 'a?[31m b'"),
    BAD("\x80\x02"
        "cos.system.",
        "a name has no end"),
    /* opcodes that are not on the list: INST, OBJ, REDUCE on a text, EXT1, PERSID, NEXT_BUFFER */
    BAD("\x80\x02(ios\nsystem\n.", "byte 3 of the pickle is the opcode 0x69"),
    BAD("\x80\x02(o.", "opcode 0x6f"),
    BAD("\x80\x02\x82\x01.", "opcode 0x82"),
    BAD("\x80\x02P1\n.", "opcode 0x50"),
    BAD("\x80\x05\x97.", "opcode 0x97"),
    BAD("\x80\x02S'a'\n.", "opcode 0x53"),
    BAD("\x80\x02X\x01\x00\x00\x00"
        "a)R.",
        "a call of something that is not a listed name"),
    BAD("\x80\x02"
        "ccollections\nOrderedDict\n]R.",
        "a call of something"),
    BAD("\x80\x02"
        "ccollections\nOrderedDict\n)\x81.",
        "an object of a class"),
    BAD("\x80\x02"
        "ccollections\nOrderedDict\nK\x01\x85R.",
        "a call of 'collections OrderedDict' with other arguments"),
    BAD("\x80\x02]}b.", "attributes of something that has none"),
    /* the stack and the memo */
    BAD("\x80\x02.", "not exactly one value"),
    BAD("\x80\x02NN.", "not exactly one value"),
    BAD("\x80\x02(N.", "not exactly one value"),
    BAD("\x80\x02t.", "no mark"),
    BAD("\x80\x02\x85.", "stack is empty"),
    BAD("\x80\x02N(\x85.", "stack is empty"),
    BAD("\x80\x02](a.", "stack is empty"),
    BAD("\x80\x02N(Ne.", "items for something"),
    BAD("\x80\x02}NNa.", "items for something"),
    BAD("\x80\x02}(Nu.", "a key without a value"),
    BAD("\x80\x02h\x00.", "not in the memo"),
    BAD("\x80\x02Nq\x05.", "skips others"),
    BAD("\x80\x02Nr\xff\xff\xff\xff.", "skips others"),
    BAD("\x80\x02q\x00.", "stack is empty"),
    /* lengths */
    BAD("\x80\x02X\xff\xff\xff\x7f"
        "a.",
        "longer than the pickle"),
    BAD("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
        "a.",
        "longer than the pickle"),
    BAD("\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00N.", "a frame is longer"),
    BAD("\x80\x02\x8a\xff\x01.", "more than 64 bits"),
    BAD("\x80\x02J\x01\x02", "ends early"),
    BAD("\x80\x02N", "ends early"),
    BAD("\x80\x02N..", "bytes follow the end"),
    BAD("\x80\x01N.", "protocol other than"),
    BAD("\x80\x06N.", "protocol other than"),
    BAD("N.", "not a pickle of protocol"),
    BAD("", "not a pickle"),
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(programs); i++) {
        clt_pickle *p = NULL;
        void *copy;
        clt_error_quiet(true);
        const clt_status st = parse(programs[i].bytes, programs[i].n, 0, &copy, &p);
        clt_error_quiet(false);
        if (st != CLT_BAD_DATA || !strstr(clt_last_error(), programs[i].message) ||
            strncmp(clt_last_error(), "x.pt: ", 6) != 0)
            fail_msg("pickle %zu: status %d, '%s' instead of '%s'", i, st, clt_last_error(),
                     programs[i].message);
        clt_free(copy);
    }
}

/* Containers in containers, marks in marks, and a text that doubles by the memo. */
static void test_bombs(void **state) {
    (void)state;
    clt_str s = {0};
    clt_pickle *p;
    clt_error_quiet(true);
    clt_pickle_put_begin(&s);
    clt_str_add(&s, ")");
    for (int i = 0; i < 100; i++) clt_str_add(&s, "\x85");
    clt_pickle_put_end(&s);
    assert_int_equal(clt_pickle_parse(s.s, s.len, 0, "x.pt", &p), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "nested more than 64"));
    s.len = 0;
    clt_pickle_put_begin(&s);
    for (int i = 0; i < 100; i++) clt_str_add(&s, "(");
    assert_int_equal(clt_pickle_parse(s.s, s.len, 0, "x.pt", &p), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "nested more than 64"));
    s.len = 0;
    clt_pickle_put_begin(&s);
    clt_str_add(&s, "](");
    for (int i = 0; i < CLT_PICKLE_MAX_VALUES; i++) clt_str_add(&s, "N");
    clt_str_add(&s, "e.");
    assert_int_equal(clt_pickle_parse(s.s, s.len, 0, "x.pt", &p), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "more than 262144 values"));
    clt_error_quiet(false);
    /* A list that is an item of itself, twice. */
    void *copy;
    static const char cycle[] = "\x80\x02]q\x00(h\x00h\x00"
                                "e.";
    assert_int_equal(parse(cycle, sizeof cycle - 1, 0, &copy, &p), CLT_OK);
    assert_ptr_equal(clt_pickle_root(p)->list.item[1], clt_pickle_root(p));
    clt_pickle_free(p);
    clt_free(copy);
    clt_str_free(&s);
}

/* --- tensors --- */

/* A tensor with any fields. */
static void put_tensor(clt_str *s, const char *class, const char *numel, const char *rest) {
    clt_pickle_put_begin(s);
    clt_str_add(s, "ctorch._utils\n_rebuild_tensor_v2\n((");
    clt_pickle_put_text(s, "storage");
    clt_str_addf(s, "c%s\n", class);
    clt_pickle_put_text(s, "0");
    clt_pickle_put_text(s, "cpu");
    clt_str_add(s, numel);
    clt_str_add(s, "tQ");
    clt_str_add(s, rest);
    clt_str_add(s, "\x89}tR.");
}

static void test_tensors(void **state) {
    (void)state;
    static const struct {
        const char *class, *numel, *rest, *message; /* rest: offset, shape, strides */
    } t[] = {
        {"torch\nFloatStorage", "K\x06", "K\x01K\x05\x85K\x01\x85", NULL},
        {"torch\nFloatStorage", "K\x06", "K\x02K\x05\x85K\x01\x85", "larger than its storage"},
        {"torch\nBFloat16Storage", "K\x06", "J\xff\xff\xff\xffK\x01\x85K\x01\x85", "no offset"},
        {"torch\nHalfStorage", "K\x06", "K\x07)K\x01\x85", "strides do not match"},
        {"torch\nLongStorage", "K\x06", "K\x06K\x02K\x03\x86K\x03K\x01\x86", "larger than its storage"},
        {"torch\nFloatStorage", "K\x06", ")K\x02K\x03\x86K\x01K\x02\x86", "no offset"},
        {"torch\nDoubleStorage", "K\x06", "]K\x02\x85K\x01\x85", "no offset"},
        {"torch\nFloatStorage", "K\x06",
         "K\x01"
         "K\x02K\x02\x86K\x01K\x02\x86",
         "not contiguous"},
        {"torch\nFloatStorage", "K\x06", "K\x01K\x02\x8a\x01\xff\x86K\x01K\x01\x86",
         "something else than sizes"},
        {"torch\nFloatStorage", "K\x06",
         "K\x01\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x09\x86K\x01K\x01\x86", "overflows"},
        {"torch\nFloatStorage", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "K\x01K\x01\x85K\x01\x85",
         "size of a storage overflows"},
        {"collections\nOrderedDict", "K\x06", "K\x01K\x05\x85K\x01\x85", "other fields than torch.save"},
        {"torch\nFloatStorage", "N", "K\x01K\x05\x85K\x01\x85", "other fields than torch.save"},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(t); i++) {
        clt_str s = {0};
        clt_pickle *p = NULL;
        put_tensor(&s, t[i].class, t[i].numel, t[i].rest);
        clt_error_quiet(t[i].message != NULL);
        const clt_status st = clt_pickle_parse(s.s, s.len, 0, "x.pt", &p);
        clt_error_quiet(false);
        if (!t[i].message)
            assert_int_equal(st, CLT_OK);
        else if (st != CLT_BAD_DATA || !strstr(clt_last_error(), t[i].message))
            fail_msg("tensor %zu: status %d, '%s' instead of '%s'", i, st, clt_last_error(), t[i].message);
        if (p) assert_int_equal(clt_pickle_root(p)->tensor.count, 5);
        clt_pickle_free(p);
        clt_str_free(&s);
    }
}

/* --- taken --- */

/* What the writer writes, with and without objects that are not represented. */
static void test_values(void **state) {
    (void)state;
    clt_str s = {0};
    clt_pickle *p = NULL;
    int64_t i;
    clt_pickle_put_begin(&s);
    clt_pickle_put_dict(&s);
    clt_pickle_put_text(&s, "small");
    clt_pickle_put_int(&s, -5);
    clt_pickle_put_text(&s, "large");
    clt_pickle_put_int(&s, -(1LL << 40));
    clt_pickle_put_text(&s, "none");
    clt_pickle_put_none(&s);
    clt_pickle_put_text(&s, "yes");
    clt_pickle_put_bool(&s, true);
    clt_pickle_put_text(&s, "list");
    clt_pickle_put_list(&s);
    clt_str_addn(&s, "G\x40\x08\0\0\0\0\0\0", 9); /* 3.0 */
    clt_pickle_put_appends(&s);
    clt_pickle_put_text(&s, "weight");
    clt_pickle_put_tensor(&s, "0", 6, 2, (uint64_t[]){2, 3});
    clt_pickle_put_items(&s);
    clt_pickle_put_end(&s);
    assert_int_equal(clt_pickle_parse(s.s, s.len, 0, "x.pt", &p), CLT_OK);
    const clt_pickle_value *r = clt_pickle_root(p), *w = clt_pickle_get(r, "weight");
    assert_true(clt_pickle_as_int(clt_pickle_get(r, "small"), &i) && i == -5);
    assert_true(clt_pickle_as_int(clt_pickle_get(r, "large"), &i) && i == -(1LL << 40));
    assert_true(clt_pickle_as_int(clt_pickle_get(r, "list")->list.item[0], &i) && i == 3);
    assert_true(clt_pickle_as_int(clt_pickle_get(r, "yes"), &i) && i == 1);
    assert_false(clt_pickle_as_int(clt_pickle_get(r, "none"), &i));
    assert_null(clt_pickle_get(r, "absent"));
    assert_int_equal(w->kind, CLT_PICKLE_TENSOR);
    assert_int_equal(w->tensor.dims, 2);
    assert_int_equal(w->tensor.shape[1], 3);
    assert_int_equal(w->tensor.storage->storage.dtype, CLT_PICKLE_F32);
    clt_pickle_free(p);
    clt_str_free(&s);
}

/* A tensor with gaps, where only counters are read. */
static void test_gaps(void **state) {
    (void)state;
    clt_str s = {0};
    clt_pickle *p;
    put_tensor(&s, "torch\nFloatStorage", "K\x06", "K\x01K\x02K\x02\x86K\x01K\x02\x86");
    assert_int_equal(clt_pickle_parse(s.s, s.len, CLT_PICKLE_OPAQUE_NAMES, "x.pt", &p), CLT_OK);
    assert_int_equal(clt_pickle_root(p)->kind, CLT_PICKLE_OPAQUE);
    clt_pickle_free(p);
    clt_str_free(&s);
}

/* {"x": LossScaler object with attributes and items, "n": 7} */
static void test_opaque(void **state) {
    (void)state;
    static const char text[] =
        "\x80\x02}(X\x01\x00\x00\x00x"
        "cdeepspeed.runtime.fp16.loss_scaler\nLossScaler\n)\x81}(X\x01\x00\x00\x00yK\x01ub"
        "X\x01\x00\x00\x00z"
        "cos\nsystem\nX\x02\x00\x00\x00id\x85R"
        "X\x01\x00\x00\x00nK\x07u.";
    clt_pickle *p;
    void *copy;
    int64_t n;
    clt_error_quiet(true);
    assert_int_equal(parse(text, sizeof text - 1, 0, &copy, &p), CLT_BAD_DATA);
    clt_error_quiet(false);
    clt_free(copy);
    assert_int_equal(parse(text, sizeof text - 1, CLT_PICKLE_OPAQUE_NAMES, &copy, &p), CLT_OK);
    assert_int_equal(clt_pickle_get(clt_pickle_root(p), "x")->kind, CLT_PICKLE_OPAQUE);
    assert_int_equal(clt_pickle_get(clt_pickle_root(p), "z")->kind, CLT_PICKLE_OPAQUE);
    assert_true(clt_pickle_as_int(clt_pickle_get(clt_pickle_root(p), "n"), &n) && n == 7);
    clt_pickle_free(p);
    clt_free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_bombs),
                                       cmocka_unit_test(test_tensors), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_gaps),    cmocka_unit_test(test_opaque)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
