/* The strict safetensors reader against files written by another implementation and hand-built damaged ones
 * (test/golden/safetensors), and the writer against the reader and the format's rules. */
#include <math.h>
#include <openssl/sha.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_safetensors.h"

#define GOLDEN "test/golden/safetensors"

static json_t *manifest(const char *list) {
    json_t *root = NULL;
    assert_int_equal(clt_json_load(GOLDEN "/manifest.json", 1 << 22, 16, &root), CLT_OK);
    json_t *out = json_incref(json_object_get(root, list));
    json_decref(root);
    assert_true(json_is_array(out) && json_array_size(out) > 5);
    return out;
}

static const char *text(json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

static void check_sha256(const void *data, size_t bytes, const char *want) {
    unsigned char raw[SHA256_DIGEST_LENGTH];
    char hex[65];
    SHA256(data, bytes, raw);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++) snprintf(hex + 2 * i, 3, "%02x", raw[i]);
    assert_string_equal(hex, want);
}

static void check_tensor(clt_safetensors *s, int i, json_t *want) {
    const clt_st_tensor *t = clt_safetensors_at(s, i);
    assert_string_equal(t->name, text(want, "name"));
    assert_string_equal(clt_st_dtype_name(t->dtype), text(want, "dtype"));
    json_t *shape = json_object_get(want, "shape"), *range = json_object_get(want, "data_offsets"), *v;
    size_t d;
    assert_int_equal(t->dims, json_array_size(shape));
    json_array_foreach(shape, d, v) assert_int_equal(t->shape[d], json_integer_value(v));
    assert_int_equal(t->begin, json_integer_value(json_array_get(range, 0)));
    assert_int_equal(t->end, json_integer_value(json_array_get(range, 1)));
    assert_int_equal(clt_safetensors_find(s, t->name), i);

    size_t bytes = (size_t)(t->end - t->begin);
    unsigned char *raw = clt_malloc(bytes);
    assert_int_equal(clt_safetensors_read(s, i, 0, raw, bytes), CLT_OK);
    check_sha256(raw, bytes, text(want, "sha256"));
    json_t *values = json_object_get(want, "values");
    if (t->dtype == CLT_ST_F32 && values) {
        float *f = clt_malloc(t->count * sizeof *f);
        assert_int_equal(clt_safetensors_read_f32(s, i, 0, f, t->count), CLT_OK);
        json_array_foreach(values, d, v) {
            if (json_is_number(v)) assert_true(f[d] == (float)json_number_value(v));
        }
        clt_free(f);
    }
    clt_free(raw);
}

static void test_valid(void **state) {
    (void)state;
    json_t *list = manifest("valid"), *want, *t, *v;
    size_t i, j;
    const char *key;
    json_array_foreach(list, i, want) {
        char *path = clt_path_join(GOLDEN, text(want, "file"));
        clt_safetensors *s = NULL;
        assert_int_equal(clt_safetensors_open(path, &s), CLT_OK);
        json_t *tensors = json_object_get(want, "tensors"), *meta = json_object_get(want, "metadata");
        assert_int_equal(clt_safetensors_count(s), json_array_size(tensors));
        json_array_foreach(tensors, j, t) check_tensor(s, (int)j, t);
        assert_int_equal(clt_safetensors_meta_count(s), json_is_object(meta) ? json_object_size(meta) : 0);
        json_object_foreach(meta, key, v)
            assert_string_equal(clt_safetensors_meta(s, key), json_string_value(v));
        clt_safetensors_close(s);
        clt_free(path);
    }
    json_decref(list);
}

static void test_invalid(void **state) {
    (void)state;
    json_t *list = manifest("invalid"), *want;
    size_t i;
    assert_int_equal(json_array_size(list), 44);
    clt_error_quiet(true);
    json_array_foreach(list, i, want) {
        char *path = clt_path_join(GOLDEN, text(want, "file"));
        clt_safetensors *s = NULL;
        assert_true(clt_io_is_file(path));
        if (clt_safetensors_open(path, &s) != CLT_BAD_DATA) fail_msg("%s was not refused", path);
        assert_null(s);
        if (!strstr(clt_last_error(), path))
            fail_msg("the message does not name %s: %s", path, clt_last_error());
        clt_free(path);
    }
    clt_error_quiet(false);
    json_decref(list);
}

/* Values of the 16-bit types, written out from the formats' definitions. */
static void test_half_types(void **state) {
    (void)state;
    static const struct {
        uint16_t word;
        float value;
    } f16[] = {{0x3C00, 1.0f},        {0xC000, -2.0f},    {0x7BFF, 65504.0f}, {0x0001, 0x1p-24f},
               {0x83FF, -0x3FFp-24f}, {0x0400, 0x1p-14f}, {0x0000, 0.0f},     {0xFC00, -INFINITY}},
      bf16[] = {
          {0x3F80, 1.0f}, {0xC000, -2.0f}, {0x7F7F, 0x1.FEp127f}, {0x0001, 0x1p-133f}, {0x7F80, INFINITY}};
    enum { N = 8, M = 5 };
    clt_str file = {0};
    char head[256];
    snprintf(head, sizeof head,
             "{\"h\":{\"dtype\":\"F16\",\"shape\":[%d],\"data_offsets\":[0,%d]},\"b\":{\"dtype\":\"BF16\","
             "\"shape\":[%d],"
             "\"data_offsets\":[%d,%d]}}",
             N, 2 * N, M, 2 * N, 2 * N + 2 * M);
    uint64_t length = strlen(head);
    clt_str_addn(&file, (const char *)&length, 8);
    clt_str_add(&file, head);
    for (int i = 0; i < N; i++) clt_str_addn(&file, (const char *)&f16[i].word, 2);
    for (int i = 0; i < M; i++) clt_str_addn(&file, (const char *)&bf16[i].word, 2);
    char path[] = "/tmp/clt_st_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, file.s, file.len), file.len);
    close(fd);

    clt_safetensors *s = NULL;
    float got[N];
    assert_int_equal(clt_safetensors_open(path, &s), CLT_OK);
    assert_int_equal(clt_safetensors_read_f32(s, clt_safetensors_find(s, "h"), 0, got, N), CLT_OK);
    for (int i = 0; i < N; i++) assert_true(got[i] == f16[i].value);
    assert_int_equal(clt_safetensors_read_f32(s, clt_safetensors_find(s, "b"), 1, got, M - 1), CLT_OK);
    for (int i = 1; i < M; i++) assert_true(got[i - 1] == bf16[i].value);
    clt_error_quiet(true);
    assert_int_equal(clt_safetensors_read_f32(s, 0, N, got, 1), CLT_FAIL);
    assert_int_equal(clt_safetensors_read_f32(s, 0, UINT64_MAX, got, 2), CLT_FAIL);
    clt_error_quiet(false);
    clt_safetensors_close(s);
    unlink(path);
    clt_str_free(&file);
}

static clt_status fill(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    (void)ctx;
    for (uint64_t i = 0; i < count; i++) dst[i] = (float)(index * 1000 + 1) + (float)(first + i) * 0.5f;
    return CLT_OK;
}

static void test_writer(void **state) {
    (void)state;
    static const clt_st_spec spec[] = {{"z.bias", CLT_ST_BF16, 1, {7}},
                                       {"w \"q\"", CLT_ST_F32, 2, {3, 5}},
                                       {"a", CLT_ST_F32, 0, {0}},
                                       {"none", CLT_ST_F32, 2, {0, 4}}};
    static const char *const meta[] = {"format", "pt"};
    char dir[] = "/tmp/clt_st_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "m.safetensors");
    clt_safetensors *s = NULL;
    clt_strv names = {0};
    int checked = 0;
    assert_int_equal(clt_safetensors_write(path, spec, 4, meta, 1, fill, NULL), CLT_OK);
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    assert_int_equal(names.n, 1); /* no temporary file remains */
    assert_int_equal(clt_safetensors_open(path, &s), CLT_OK);
    assert_int_equal(clt_safetensors_verify(s, &checked), CLT_OK);
    assert_int_equal(checked, 4);
    assert_string_equal(clt_safetensors_meta(s, "format"), "pt");
    static const char *const order[] = {"a", "none", "w \"q\"", "z.bias"};
    for (int i = 0; i < 4; i++) assert_string_equal(clt_safetensors_at(s, i)->name, order[i]);
    float got[15];
    assert_int_equal(clt_safetensors_read_f32(s, 2, 0, got, 15), CLT_OK);
    for (int i = 0; i < 15; i++) assert_true(got[i] == 1001.0f + (float)i * 0.5f);
    assert_int_equal(clt_safetensors_read_f32(s, 3, 0, got, 7), CLT_OK);
    for (int i = 0; i < 7; i++) assert_true(got[i] == 1.0f + (float)i * 0.5f);
    clt_safetensors_close(s);

    /* One flipped data byte is found by the hashes in the metadata. */
    char *data;
    size_t n;
    assert_int_equal(clt_io_read_all(path, 1 << 20, &data, &n), CLT_OK);
    data[n - 1] ^= 4;
    assert_int_equal(clt_io_write_atomic(path, data, n), CLT_OK);
    clt_free(data);
    assert_int_equal(clt_safetensors_open(path, &s), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_safetensors_verify(s, &checked), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_non_null(strstr(clt_last_error(), "z.bias"));
    clt_safetensors_close(s);
    clt_strv_free(&names);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
}

/* Texts that a lenient JSON reader accepts. */
static void test_stricter_than_json(void **state) {
    (void)state;
    static const char *const bad[] = {
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1e0],\"data_offsets\":[0,1]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
    };
    clt_safetensors *s = NULL;
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++)
        for (uint64_t data = 0; data < 2; data++)
            assert_int_equal(clt_safetensors_parse(bad[i], strlen(bad[i]), data, "text", &s), CLT_BAD_DATA);
    clt_error_quiet(false);
    const char *good = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}";
    assert_int_equal(clt_safetensors_parse(good, strlen(good), 1, "text", &s), CLT_OK);
    clt_safetensors_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_half_types),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_stricter_than_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
