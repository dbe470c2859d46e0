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

/* The names of another program: reversed, so that they sort differently. */
static const char *other_name(const void *ctx, const char *tensor) {
    (void)ctx;
    return strcmp(tensor, "transformer.wte.weight") ? "a.norm" : "z.embedding";
}

static void test_other_names(void **state) {
    (void)state;
    clt_st_spec spec[] = {{"z.embedding", CLT_ST_F32, 2, {5, 4}}, {"a.norm", CLT_ST_F32, 1, {4}}};
    clt_weight_source *s;
    clt_slab_table t;
    write_text("config.json", "{\"d_model\": 4}");
    write_weights("model.safetensors", spec, 2);
    make_table(&t);
    assert_int_equal(clt_weight_source_open(dir, &s), CLT_OK);
    assert_int_equal(clt_weight_source_find(s, "weight", "transformer.wte.weight"), -1);
    clt_weight_source_use_names(s, &t, other_name, NULL);
    float *host = clt_calloc(t.total, sizeof *host);
    const clt_ckpt_part part = {.role = "weight", .host = host};
    assert_int_equal(clt_weight_source_load(s, &t, &part, 1, NULL), CLT_OK);
    for (int e = 0; e < t.n; e++)
        for (uint64_t i = 0; i < t.entry[e].count; i++)
            assert_true(host[t.entry[e].offset + i] == value(t.entry[e].shape[0], i));
    clt_free(host);
    clt_slab_table_free(&t);
    clt_weight_source_close(s);
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
                                       cmocka_unit_test_setup_teardown(test_other_names, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_shards, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
