/* Weights from Hugging Face folders: one file, shards with an index, Composer's prefix, a tied head, invalid
 * indexes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"

static char dir[64];

static int set_up(void **state) {
    (void)state;
    strcpy(dir, "/tmp/clt_hf_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(dir) == CLT_OK ? 0 : -1;
}

static void write_text(const char *name, const char *text) {
    char *path = clt_path_join(dir, name);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(path);
}

/* Element i of the tensor with `rows` rows. */
static float value(int64_t rows, uint64_t i) {
    return (float)rows + (float)i / 1024.0f;
}

static clt_status fill(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    const clt_st_spec *spec = ctx;
    for (uint64_t i = 0; i < count; i++) dst[i] = value((int64_t)spec[index].shape[0], first + i);
    return CLT_OK;
}

static void write_weights(const char *file, clt_st_spec *spec, int n) {
    char *path = clt_path_join(dir, file);
    assert_int_equal(clt_safetensors_write(path, spec, n, NULL, 0, fill, spec), CLT_OK);
    clt_free(path);
}

static void make_table(clt_slab_table *t) {
    *t = (clt_slab_table){0};
    clt_slab_table_add(t, "transformer.wte.weight", 2, (int64_t[]){5, 4});
    clt_slab_table_add(t, "transformer.norm_f.weight", 1, (int64_t[]){4});
    clt_slab_table_finish(t);
}

/* Opens the folder and loads its two tensors. */
static clt_status load(const clt_load_options *opt) {
    clt_weight_source *s = NULL;
    clt_slab_table t;
    CLT_TRY(clt_weight_source_open(dir, &s));
    make_table(&t);
    float *host = clt_calloc(t.total, sizeof *host);
    clt_ckpt_part part = {.role = "weight", .host = host};
    clt_status st = clt_weight_source_load(s, &t, &part, 1, opt);
    for (int e = 0; e < t.n && st == CLT_OK; e++)
        for (uint64_t i = 0; i < t.entry[e].count; i++)
            if (host[t.entry[e].offset + i] != value(t.entry[e].shape[0], i)) st = CLT_FAIL;
    clt_free(host);
    clt_slab_table_free(&t);
    clt_weight_source_close(s);
    return st;
}

/* A map of the two tensors: the norm under another name, and the embedding transposed. */
static clt_weight_map *other_layout(const clt_slab_table *t) {
    static const char *const ignored[] = {"*.mask", NULL};
    clt_weight_map *m = clt_calloc(1, sizeof *m);
    m->prefix = "body.";
    m->ignored = ignored;
    m->head = "head.weight";
    clt_weight_map_add_part(
        m, &(clt_map_part){.file = clt_weight_map_add_file(m, "body.z", 2, (int64_t[]){4, 5}),
                           .tensor = clt_slab_table_find(t, "transformer.wte.weight"),
                           .rows = 5,
                           .cols = 4,
                           .block = 5,
                           .transposed = true});
    clt_weight_map_add_part(m,
                            &(clt_map_part){.file = clt_weight_map_add_file(m, "body.a", 1, (int64_t[]){4}),
                                            .tensor = clt_slab_table_find(t, "transformer.norm_f.weight"),
                                            .rows = 4,
                                            .cols = 1,
                                            .block = 4});
    return m;
}

static clt_status load_mapped(const clt_load_options *opt, float *host) {
    clt_weight_source *s = NULL;
    clt_slab_table t;
    CLT_TRY(clt_weight_source_open(dir, &s));
    make_table(&t);
    const clt_ckpt_part part = {.role = "weight", .host = host};
    clt_status st = clt_weight_source_use_map(s, &t, other_layout(&t), opt);
    if (st == CLT_OK) st = clt_weight_source_load(s, &t, &part, 1, opt);
    clt_slab_table_free(&t);
    clt_weight_source_close(s);
    return st;
}

static void check_mapped(const float *host) {
    for (uint64_t r = 0; r < 5; r++)
        for (uint64_t c = 0; c < 4; c++) assert_true(host[r * 4 + c] == value(4, c * 5 + r));
    for (uint64_t i = 0; i < 4; i++) assert_true(host[64 + i] == value(4, i));
}

static void test_other_layout(void **state) {
    (void)state;
    clt_st_spec spec[] = {{"body.z", CLT_ST_F32, 2, {4, 5}},
                          {"body.a", CLT_ST_F32, 1, {4}},
                          {"x.mask", CLT_ST_F32, 4, {1, 1, 2, 2}}};
    float *host = clt_calloc(2 * CLT_CHUNK, sizeof *host);
    write_text("config.json", "{\"d_model\": 4}");
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load_mapped(NULL, host), CLT_OK);
    check_mapped(host);
    spec[0].name = "z", spec[1].name = "a"; /* without the prefix */
    memset(host, 0, 2 * CLT_CHUNK * sizeof *host);
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load_mapped(NULL, host), CLT_OK);
    check_mapped(host);
    clt_error_quiet(true);
    spec[0].shape[0] = 5, spec[0].shape[1] = 4;
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load_mapped(NULL, host), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "tensor 'z' has shape [5, 4]"));
    assert_non_null(strstr(clt_last_error(), "needs [4, 5]"));
    spec[0].shape[0] = 4, spec[0].shape[1] = 5;
    spec[2].name = "body.other";
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load_mapped(NULL, host), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "body.other"));
    write_weights("model.safetensors", spec + 1, 1);
    assert_int_equal(load_mapped(NULL, host), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "tensor 'body.z' is missing"));
    const clt_load_options loose = {.loose = true}, without = {(const char *const[]){"*wte*"}, 1, false};
    assert_int_equal(load_mapped(&loose, host), CLT_OK);
    assert_int_equal(load_mapped(&without, host), CLT_OK);
    clt_error_quiet(false);
    clt_free(host);
}

static void check_dtype(const char *want) {
    clt_weight_source *s = NULL;
    clt_slab_table t;
    assert_int_equal(clt_weight_source_open(dir, &s), CLT_OK);
    make_table(&t);
    assert_int_equal(clt_weight_source_use_map(s, &t, other_layout(&t), NULL), CLT_OK);
    assert_string_equal(clt_weight_source_dtype(s), want);
    clt_slab_table_free(&t);
    clt_weight_source_close(s);
}

/* What is no weight does not count. */
static void test_dtype(void **state) {
    (void)state;
    clt_st_spec spec[] = {{"body.z", CLT_ST_F16, 2, {4, 5}},
                          {"body.a", CLT_ST_F16, 1, {4}},
                          {"x.mask", CLT_ST_F32, 4, {1, 1, 2, 2}}};
    write_text("config.json", "{\"d_model\": 4}");
    write_weights("model.safetensors", spec, 3);
    check_dtype("float16");
    spec[0].dtype = spec[1].dtype = CLT_ST_BF16;
    write_weights("model.safetensors", spec, 3);
    check_dtype("bfloat16");
    spec[1].dtype = CLT_ST_F32;
    write_weights("model.safetensors", spec, 3);
    check_dtype("float32");
}

/* Files of PyTorch are programs: the message says how to convert them. */
static void test_pickles(void **state) {
    (void)state;
    clt_weight_source *s = NULL;
    write_text("config.json", "{}");
    write_text("pytorch_model.bin", "x");
    clt_error_quiet(true);
    assert_int_equal(clt_weight_source_open(dir, &s), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "save_pretrained"));
    clt_error_quiet(false);
}

static void test_one_file(void **state) {
    (void)state;
    clt_st_spec spec[] = {{"model.transformer.wte.weight", CLT_ST_F32, 2, {5, 4}},
                          {"model.transformer.norm_f.weight", CLT_ST_BF16, 1, {4}},
                          {"model.lm_head.weight", CLT_ST_F32, 2, {5, 4}}};
    write_text("config.json", "{\"d_model\": 4}");
    write_weights("model.safetensors", spec, 3); /* 4, 4 + 1/1024, ... are not bf16 numbers */
    assert_int_equal(load(NULL), CLT_FAIL);
    spec[1].dtype = CLT_ST_F32;
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load(NULL), CLT_OK);
    clt_weight_source *s;
    assert_int_equal(clt_weight_source_open(dir, &s), CLT_OK);
    assert_int_equal(clt_weight_source_kind(s), CLT_SOURCE_HF);
    assert_string_equal(clt_weight_source_model(s), "{\"d_model\":4}");
    assert_int_equal(clt_weight_source_count(s), 3);
    assert_true(clt_weight_source_find(s, "weight", "lm_head.weight") >= 0);
    assert_int_equal(clt_weight_source_find(s, "exp_avg", "transformer.wte.weight"), -1);
    clt_weight_source_close(s);
    /* The names of a model that was saved without its head. */
    spec[0].name = "wte.weight", spec[1].name = "norm_f.weight";
    write_weights("model.safetensors", spec, 2);
    assert_int_equal(load(NULL), CLT_OK);
    spec[0].name = "model.transformer.wte.weight", spec[1].name = "model.transformer.norm_f.weight";
    /* A head that differs from the embedding belongs to another model; numbers that bf16 rounds differ. */
    clt_error_quiet(true);
    spec[2].dtype = CLT_ST_BF16;
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load(NULL), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "tie_word_embeddings"));
    assert_int_equal(load(&(clt_load_options){(const char *const[]){"*lm_head*"}, 1, false}), CLT_OK);
    spec[2].dtype = CLT_ST_F32;
    /* Anything else that the model does not have is a difference, unless it is ignored. */
    spec[2].name = "transformer.other.weight";
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load(NULL), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "transformer.other.weight"));
    assert_int_equal(load(&(clt_load_options){(const char *const[]){"*other*"}, 1, false}), CLT_OK);
    /* The same tensor with and without the prefix. */
    spec[2].name = "transformer.wte.weight";
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load(NULL), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "appears twice"));
    /* No parameter has five dimensions. */
    spec[2] = (clt_st_spec){"transformer.x", CLT_ST_F32, 5, {1, 1, 1, 1, 1}};
    write_weights("model.safetensors", spec, 3);
    assert_int_equal(load(NULL), CLT_BAD_DATA);
    clt_error_quiet(false);
}

static void test_shards(void **state) {
    (void)state;
    static const struct {
        const char *index, *says;
    } bad[] = {
        {"{\"weight_map\":{\"transformer.wte.weight\":\"a.safetensors\"}}", "is missing"},
        {"{\"weight_map\":{\"transformer.wte.weight\":\"../a.safetensors\"}}", "a file outside this folder"},
        {"{\"weight_map\":{\"transformer.wte.weight\":\"/etc/passwd\"}}", "a file outside this folder"},
        {"{\"weight_map\":{\"transformer.wte.weight\":7}}", "a file outside this folder"},
        {"{\"weight_map\":{\"transformer.wte.weight\":\"b.safetensors\","
         "\"transformer.norm_f.weight\":\"a.safetensors\"}}",
         "is not in"},
        {"{\"weight_map\":{\"transformer.wte.weight\":\"absent.safetensors\"}}", "absent.safetensors"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"[]", "weight_map"},
    };
    clt_st_spec a = {"transformer.wte.weight", CLT_ST_F32, 2, {5, 4}};
    clt_st_spec b = {"transformer.norm_f.weight", CLT_ST_F32, 1, {4}};
    write_text("config.json", "{}");
    write_weights("a.safetensors", &a, 1);
    write_weights("b.safetensors", &b, 1);
    write_text(
        "model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":96},\"weight_map\":{\"transformer.wte.weight\":\"a.safetensors\","
        "\"transformer.norm_f.weight\":\"b.safetensors\"}}");
    assert_int_equal(load(NULL), CLT_OK);
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        write_text("model.safetensors.index.json", bad[i].index);
        clt_status st = load(NULL);
        if (st != CLT_BAD_DATA && st != CLT_IO) fail_msg("accepted: %s", bad[i].index);
        if (!strstr(clt_last_error(), bad[i].says))
            fail_msg("%s: the message is '%s'", bad[i].index, clt_last_error());
    }
    clt_error_quiet(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_one_file, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_other_layout, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_dtype, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_pickles, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_shards, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
