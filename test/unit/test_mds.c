/* MDS reading and writing against the sets that the real package wrote, and its damaged copies
 * (test/golden/mds). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_digest.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_utf8.h"
#include "test/golden_util.h"

#define SETS "test/golden/mds/"

enum { MAX_TOKENS = 4096 };

static char *scratch_dir(void) {
    char *dir = clt_strdup("/tmp/clt_test_mds_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

/* --- valid sets --- */

static void check_tokens(clt_mds *m, json_t *want, const char *set) {
    int32_t tokens[MAX_TOKENS];
    int64_t n, full, sample = golden_int(want, "index");
    assert_int_equal(clt_mds_get_tokens(m, sample, MAX_TOKENS, 0, tokens, &n, &full), CLT_OK);
    assert_int_equal(n, golden_int(want, "num_tokens"));
    assert_int_equal(full, n);
    char hex[65];
    golden_sha256(tokens, (size_t)n * sizeof *tokens, hex);
    if (strcmp(hex, golden_str(want, "sha256_int32_le")))
        fail_msg("%s: sample %lld differs", set, (long long)sample);
    json_t *list = json_object_get(want, "tokens");
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_int_equal(tokens[i], json_integer_value(json_array_get(list, i)));
    /* Truncated: the first tokens, and the full length. */
    int32_t few[3] = {-1, -1, -1};
    assert_int_equal(clt_mds_get_tokens(m, sample, 2, 0, few, &n, &full), CLT_OK);
    assert_int_equal(n, CLT_MIN(full, 2));
    assert_int_equal(full, golden_int(want, "num_tokens"));
    assert_memory_equal(few, tokens, (size_t)n * sizeof *few);
    assert_int_equal(few[2], -1);
}

static void check_text(clt_mds *m, json_t *want) {
    clt_str text = {0};
    assert_int_equal(clt_mds_get_text(m, golden_int(want, "index"), &text), CLT_OK);
    char hex[65];
    golden_sha256(text.s, text.len, hex);
    assert_string_equal(hex, golden_str(want, "sha256_utf8"));
    clt_str_free(&text);
}

static void check_set(const char *set, const clt_mds_params *p) {
    char *dir = clt_format(SETS "%s", set), *path = clt_path_join(dir, "samples.json");
    json_t *want = golden_load(path), *shards = json_object_get(want, "shards"),
           *list = json_object_get(want, "list");
    clt_mds *m;
    assert_int_equal(clt_mds_open(dir, p, &m), CLT_OK);
    assert_int_equal(clt_mds_num_samples(m), golden_int(want, "samples"));
    assert_int_equal(clt_mds_num_shards(m), json_array_size(shards));
    for (size_t i = 0; i < json_array_size(shards); i++) {
        clt_mds_shard s;
        clt_mds_shard_info(m, i, &s);
        assert_int_equal(s.samples, json_integer_value(json_array_get(shards, i)));
    }
    size_t n = json_array_size(list);
    assert_int_equal(n, clt_mds_num_samples(m));
    for (size_t i = 0; i < n;
         i++) { /* from both ends, so that consecutive samples come from different shards */
        json_t *s = json_array_get(list, i % 2 ? n - 1 - i / 2 : i / 2);
        if (clt_mds_has_tokens(m))
            check_tokens(m, s, set);
        else
            check_text(m, s);
    }
    size_t bad = 99;
    assert_int_equal(clt_mds_verify(m, 0, NULL, &bad), CLT_OK);
    assert_int_equal(bad, 0);
    clt_mds_close(m);
    json_decref(want);
    clt_free(dir);
    clt_free(path);
}

static void test_sets(void **state) {
    (void)state;
    static const char *const sets[] = {
        "tokens_i32/train", "tokens_i32/val",   "tokens_i32_packed", "tokens_i32_zstd", "tokens_i32_zstd19",
        "tokens_bytes_i64", "tokens_u16_fixed", "text_str",          "many_columns",    "tokens_i32_gz",
        "tokens_i32_bz2",   "tokens_i32_br",    "tokens_i32_snappy"};
    const clt_mds_params one_slot = {.cache_bytes = 1}, none = {.validate_hash = "none"};
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        check_set(sets[i], NULL);
        check_set(sets[i], &one_slot);
        check_set(sets[i], &none);
    }
}

static void test_hashes(void **state) {
    (void)state;
    static const char *const names[] = {"blake2s", "md5", "sha256", "xxh128", "xxh32", "xxh3_128", "xxh3_64"};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        check_set("tokens_i32_zstd19", &(clt_mds_params){.validate_hash = names[i]});
    check_set("tokens_i32_packed", &(clt_mds_params){.validate_hash = "xxh64"});
    clt_mds *m;
    assert_int_equal(clt_mds_open(SETS "tokens_i32_packed", &(clt_mds_params){.validate_hash = "md5"}, &m),
                     CLT_BAD_CONFIG);
    assert_int_equal(clt_mds_open(SETS "tokens_i32_packed", &(clt_mds_params){.validate_hash = "sha0"}, &m),
                     CLT_BAD_CONFIG);
}

/* Published values, for the empty text, of the algorithms that no set uses. */
static void test_digests(void **state) {
    (void)state;
    static const char *const known[][2] = {
        {"sha1", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
        {"sha224", "d14a028c2a3a2bc9476102bb288234c415a2b01f828ea62ac5b3e42f"},
        {"sha384",
         "38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da274edebfe76f65fbd51ad2f14898b95b"},
        {"sha512", "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d28"
                   "77eec2f63b931bd474"
                   "17a81a538327af927da3e"},
        {"sha3_256", "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"},
        {"blake2b", "786a02f742015903c6c6fd852552d272912f4740e15847618a86e217f71f5419d25e1031afee585313896444"
                    "934eb04b903a685b1448b"
                    "755d56f701afe9be2ce"},
        {"blake2s", "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9"},
        {"xxh64", "ef46db3751d8e999"},
        {"xxh32", "02cc5d05"},
        {"xxh3_64", "2d06800538d394c2"},
        {"xxh128", "99aa06d3014798d86001c324468d497f"},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(known); i++) {
        char hex[CLT_DIGEST_MAX_HEX];
        int algo = clt_digest_find(known[i][0]);
        assert_true(algo >= 0);
        assert_int_equal(clt_digest_hex_size(algo), strlen(known[i][1]));
        assert_int_equal(clt_digest_of(algo, "", 0, hex), CLT_OK);
        assert_string_equal(hex, known[i][1]);
    }
}

/* Decompresses DIR/NAME.zstd to DIR/NAME. */
static void decompress(const char *dir, const char *name) {
    enum { LIMIT = 1 << 20 };
    char *zip_path = clt_format("%s/%s.zstd", dir, name), *raw_path = clt_path_join(dir, name), *zip;
    char *raw = clt_malloc(LIMIT);
    size_t n;
    assert_int_equal(clt_io_read_all(zip_path, LIMIT, &zip, &n), CLT_OK);
    n = ZSTD_decompress(raw, LIMIT, zip, n);
    assert_false(ZSTD_isError(n));
    assert_int_equal(clt_io_write_atomic(raw_path, raw, n), CLT_OK);
    clt_free(raw);
    clt_free(zip);
    clt_free(raw_path);
    clt_free(zip_path);
}

static void check_beside(const char *dir, clt_status want, const char *text) {
    clt_mds *m;
    clt_mds_shard s;
    size_t bad;
    assert_int_equal(clt_mds_open(dir, NULL, &m), CLT_OK);
    clt_mds_shard_info(m, 0, &s);
    assert_string_equal(s.file, "shard.00000.mds");
    assert_int_equal(clt_mds_verify(m, 0, NULL, &bad), want);
    assert_int_equal(bad, want != CLT_OK);
    if (text) assert_non_null(strstr(clt_last_error(), text));
    clt_mds_close(m);
}

/* A raw file beside the compressed one, as a download cache leaves it, is read instead; verify checks both.
 */
static void test_raw_beside_zip(void **state) {
    (void)state;
    char *dir = scratch_dir(), *path = clt_format("%s/shard.00000.mds.zstd", dir), *zip;
    char *cmd = clt_format("cp " SETS "tokens_i32_zstd/* %s && chmod u+w %s/*", dir, dir);
    size_t n;
    assert_int_equal(system(cmd), 0);
    decompress(dir, "shard.00000.mds");
    check_beside(dir, CLT_OK, NULL);
    assert_int_equal(clt_io_read_all(path, 1 << 20, &zip, &n), CLT_OK);
    zip[n / 2] ^= 1;
    assert_int_equal(clt_io_write_atomic(path, zip, n), CLT_OK);
    check_beside(dir, CLT_BAD_DATA, "shard.00000.mds.zstd: ");
    assert_int_equal(clt_io_write_atomic(path, zip, n - 1), CLT_OK);
    check_beside(dir, CLT_BAD_DATA, "fewer bytes than index.json says");
    assert_int_equal(clt_io_unlink(path), CLT_OK);
    check_beside(dir, CLT_OK, NULL);
    clt_free(zip);
    clt_io_remove_tree(dir);
    clt_free(dir);
    clt_free(path);
    clt_free(cmd);
}

/* So other compressions can be read after decompression. */
static void test_raw_beside_gz(void **state) {
    (void)state;
    char *dir = scratch_dir();
    char *cmd = clt_format("cp test/golden/mds/tokens_i32_gz/* %s && chmod u+w %s/* && gzip -d %s/*.gz", dir,
                           dir, dir);
    assert_int_equal(system(cmd), 0);
    clt_mds *m;
    size_t bad;
    assert_int_equal(clt_mds_open(dir, NULL, &m), CLT_OK);
    json_t *want = golden_load(SETS "tokens_i32_gz/samples.json"), *list = json_object_get(want, "list");
    for (size_t i = 0; i < json_array_size(list); i++)
        check_tokens(m, json_array_get(list, i), "tokens_i32_gz");
    assert_int_equal(clt_mds_verify(m, 0, NULL, &bad), CLT_OK);
    clt_mds_close(m);
    json_decref(want);
    clt_io_remove_tree(dir);
    clt_free(dir);
    clt_free(cmd);
}

/* --- damaged sets --- */

/* What the message must contain: the fact and the file. */
static const struct {
    const char *set, *fact, *where;
} damaged[] = {
    {"truncated_shard", "fewer bytes than index.json says", "shard.00001.mds"},
    {"truncated_to_header", "ends inside its offset table", "shard.00000.mds"},
    {"empty_shard_file", "is empty", "shard.00001.mds"},
    {"trailing_bytes", "more bytes than index.json says", "shard.00000.mds"},
    {"flipped_byte_raw_hash", "sha1 checksum mismatch", "shard.00001.mds"},
    {"flipped_byte_zip_hash", "checksum mismatch", "shard.00000.mds.zstd"},
    {"zip_ok_raw_hash_wrong", "checksum mismatch after decompression", "shard.00000.mds"},
    {"hash_wrong_length", "is not 40 hex digits", "shard.00000.mds"},
    {"missing_shard", "does not exist", "shard.00001.mds"},
    {"samples_too_many_in_index", "fewer samples than index.json says", "shard.00000.mds"},
    {"samples_too_few_in_index", "more samples than index.json says", "shard.00000.mds"},
    {"samples_negative", "is negative", "shard 0"},
    {"samples_huge", "cannot fit", "shard.00000.mds"},
    {"samples_not_integer", "'samples' must be an integer", "shard 0"},
    {"no_shards", "has no samples", "index.json"},
    {"offset_past_end", "past the end", "shard.00000.mds"},
    {"last_offset_not_size", "is not the file size", "shard.00000.mds"},
    {"offset_non_monotonic", "sample offsets decrease", "shard.00000.mds"},
    {"offset_into_header", "inside the offset table", "shard.00000.mds"},
    {"huge_n", "sample count 4294967295 in the shard header does not fit", "shard.00000.mds"},
    {"n_zero", "header says 0 samples, index.json says 5", "shard.00000.mds"},
    {"traversal_basename", "basename ../shard.00000.mds is not a plain file name", "shard 0"},
    {"absolute_basename", "basename /etc/hostname is not a plain file name", "shard 0"},
    {"nested_traversal_basename", "basename a/../../x.zstd is not a plain file name", "zip_data"},
    {"empty_basename", "basename is empty", "shard 0"},
    {"nul_in_basename", "\\u0000", "index.json:1:"},
    {"zip_size_mismatch", "is not zip_data.bytes", "shard.00000.mds.zstd"},
    {"raw_size_mismatch", "decompresses to another size than raw_data.bytes", "shard.00000.mds.zstd"},
    {"raw_bytes_huge", "over 2^32", "shard 0"},
    {"decompression_bomb", "larger than raw_data.bytes", "shard.00000.mds.zstd"},
    {"zip_garbage", "is not a zstd frame", "shard.00000.mds.zstd"},
    {"zip_truncated", "incomplete",
     "zstd frame of test/golden/mds/corrupt/zip_truncated/shard.00000.mds.zstd"},
    {"zip_data_null", "compression is zstd but zip_data is null", "shard 0"},
    {"unknown_compression", "unknown compression lz9", "shard 0"},
    {"json_truncated", "not valid JSON", "index.json:"},
    {"json_empty_file", "is empty", "index.json"},
    {"json_not_object", "not an object", "index.json"},
    {"json_trailing_garbage", "end of file expected", "index.json:"},
    {"json_depth_bomb", "nested 30001 deep, at most", "index.json"},
    {"json_not_utf8", "is not UTF-8", "index.json"},
    {"missing_index", "no index.json", "missing_index"},
    {"missing_version", "'version' is missing", "index.json"},
    {"missing_raw_data", "'raw_data' is missing", "shard 0"},
    {"version_3", "index version 3 is not supported", "index.json"},
    {"shard_version_3", "shard version 3 is not supported", "index.json"},
    {"format_jsonl", "shard format json is not mds", "shard 0"},
    {"pickle_column", "pkl (column 'tokens') is refused as unsafe", "shard 0"},
    {"unknown_encoding", "unknown column encoding ndarray:int33", "shard 0"},
    {"no_token_column", "no column tokens or text", "shard 0"},
    {"column_lists_differ", "column_names, column_encodings and column_sizes differ in length", "shard 0"},
    {"fixed_size_wrong", "column size 60 is not that of ndarray:uint16:32", "shard 0"},
    {"column_length_past_sample", "runs past the end of sample 1", "shard.00000.mds"},
    {"column_length_short", "bytes left over in sample 0", "shard.00000.mds"},
    {"ndarray_shape_too_big", "array shape needs more bytes than the column has", "(sample 0 "},
    {"ndarray_shape_too_small", "array shape needs fewer bytes than the column has", "(sample 0 "},
    {"ndarray_ndim_63", "array header claims 63 dimensions of 8 bytes, more than the column has",
     "(sample 0 "},
    {"ndarray_ndim_0", "array has no dimensions", "(sample 0 "},
    {"bytes_not_multiple_of_8", "bytes column is not a multiple of 8", "(sample 0 "},
    {"text_not_utf8", "is not UTF-8", "sample 4 of test/golden/mds/corrupt/text_not_utf8/shard.00000.mds"},
    {"negative_token", "token id -7 is outside the vocabulary", "shard.00000.mds"},
    {"token_over_vocab", "token id 2147483647 is outside the vocabulary", "shard.00000.mds"},
};

/* Reads everything, like a run. */
static clt_status read_everything(const char *dir, const clt_mds_params *p) {
    clt_mds *m = NULL;
    int32_t tokens[MAX_TOKENS];
    int64_t n;
    clt_str text = {0};
    clt_status st = clt_mds_open(dir, p, &m);
    for (int64_t i = 0; st == CLT_OK && i < clt_mds_num_samples(m); i++)
        st = clt_mds_has_tokens(m) ? clt_mds_get_tokens(m, i, MAX_TOKENS, 2000, tokens, &n, NULL)
                                   : clt_mds_get_text(m, i, &text);
    clt_str_free(&text);
    clt_mds_close(m);
    return st;
}

static void check_damaged(json_t *c) {
    const char *name = golden_str(c, "case");
    size_t i = 0;
    while (i < CLT_COUNT_OF(damaged) && strcmp(damaged[i].set, name)) i++;
    if (i == CLT_COUNT_OF(damaged)) fail_msg("%s has no expectation here", name);
    char *dir = clt_format(SETS "corrupt/%s", name);
    clt_mds_params p = {.validate_hash = golden_str(c, "validate_hash")};
    clt_status st = read_everything(dir, &p);
    if (st != CLT_BAD_DATA) fail_msg("%s: status %s", name, clt_status_name(st));
    if (!strstr(clt_last_error(), damaged[i].fact) || !strstr(clt_last_error(), damaged[i].where))
        fail_msg("%s: the message is: %s", name, clt_last_error());
    /* verify finds it without the name of a checksum. */
    clt_mds *m;
    size_t bad;
    st = clt_mds_open(dir, NULL, &m);
    if (st == CLT_OK) {
        st = clt_mds_verify(m, 2000, NULL, &bad);
        assert_true(bad >= 1);
        clt_mds_close(m);
    }
    if (st != CLT_BAD_DATA) fail_msg("%s: verify says %s", name, clt_status_name(st));
    clt_free(dir);
}

static void test_damaged(void **state) {
    (void)state;
    json_t *all = golden_load(SETS "corrupt/manifest.json"), *cases = json_object_get(all, "cases");
    assert_int_equal(json_array_size(cases), 61);
    for (size_t i = 0; i < json_array_size(cases); i++) check_damaged(json_array_get(cases, i));
    json_decref(all);
}

static void test_refusals(void **state) {
    (void)state;
    clt_mds *m;
    int32_t t[4];
    int64_t n;
    assert_int_equal(clt_mds_open(SETS "absent", NULL, &m), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "does not exist"));
    assert_int_equal(clt_mds_open("gs://bucket/set", NULL, &m), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "S3-compatible"));
    assert_int_equal(
        clt_mds_open(SETS "tokens_i32/val", &(clt_mds_params){.token_encoding_type = "float32"}, &m),
        CLT_BAD_CONFIG);
    assert_int_equal(clt_mds_open(SETS "text_str", NULL, &m), CLT_OK);
    assert_int_equal(clt_mds_get_tokens(m, 0, 4, 0, t, &n, NULL), CLT_BAD_CONFIG);
    clt_mds_close(m);
    assert_int_equal(clt_mds_open(SETS "tokens_i32/val", NULL, &m), CLT_OK);
    assert_int_equal(clt_mds_get_tokens(m, clt_mds_num_samples(m), 4, 0, t, &n, NULL), CLT_BAD_DATA);
    assert_int_equal(clt_mds_get_tokens(m, -1, 4, 0, t, &n, NULL), CLT_BAD_DATA);
    clt_mds_close(m);
}

/* Once the shards are open, reading allocates nothing. */
static void test_steady(void **state) {
    (void)state;
    static const char *const sets[] = {"tokens_i32/train", "tokens_i32_zstd"};
    for (size_t k = 0; k < CLT_COUNT_OF(sets); k++) {
        char *dir = clt_format(SETS "%s", sets[k]);
        clt_mds *m;
        int32_t tokens[MAX_TOKENS];
        int64_t n;
        assert_int_equal(clt_mds_open(dir, NULL, &m), CLT_OK);
        assert_int_equal(clt_mds_preload(m), CLT_OK);
        uint64_t before = clt_alloc_count();
        for (int64_t i = 0; i < clt_mds_num_samples(m); i++)
            assert_int_equal(clt_mds_get_tokens(m, i, MAX_TOKENS, 0, tokens, &n, NULL), CLT_OK);
        assert_true(clt_alloc_count() == before);
        clt_mds_close(m);
        clt_free(dir);
    }
}

/* --- writing --- */

/* One sample, of tokens or of text. */
static void copy_sample(clt_mds *m, int64_t i, clt_mds_writer *w) {
    int32_t tokens[MAX_TOKENS];
    int64_t n;
    clt_str text = {0};
    if (clt_mds_has_tokens(m)) {
        assert_int_equal(clt_mds_get_tokens(m, i, MAX_TOKENS, 0, tokens, &n, NULL), CLT_OK);
        assert_int_equal(clt_mds_writer_add(w, tokens, (size_t)n), CLT_OK);
    } else {
        assert_int_equal(clt_mds_get_text(m, i, &text), CLT_OK);
        assert_int_equal(clt_mds_writer_add_text(w, text.s, text.len), CLT_OK);
    }
    clt_str_free(&text);
}

static void copy_set(const char *from, const char *to, const clt_mds_writer_params *p) {
    clt_mds *m;
    clt_mds_writer *w;
    assert_int_equal(clt_mds_open(from, NULL, &m), CLT_OK);
    assert_int_equal(clt_mds_writer_create(to, p, &w), CLT_OK);
    for (int64_t i = 0; i < clt_mds_num_samples(m); i++) copy_sample(m, i, w);
    assert_int_equal(clt_mds_writer_finish(w), CLT_OK);
    clt_mds_close(m);
}

static void assert_same_file(const char *dir_a, const char *dir_b, const char *name) {
    char *a, *b, *path_a = clt_path_join(dir_a, name), *path_b = clt_path_join(dir_b, name);
    size_t n, k;
    assert_int_equal(clt_io_read_all(path_a, 1 << 20, &a, &n), CLT_OK);
    assert_int_equal(clt_io_read_all(path_b, 1 << 20, &b, &k), CLT_OK);
    if (n != k || memcmp(a, b, n)) fail_msg("%s and %s differ", path_a, path_b);
    clt_free(a);
    clt_free(b);
    clt_free(path_a);
    clt_free(path_b);
}

/* Equal samples and options give the reference's bytes, including index.json. */
static void check_rewrite(const char *set, const clt_mds_writer_params *p) {
    char *from = clt_format(SETS "%s", set), *dir = scratch_dir(), *to = clt_path_join(dir, "out/train");
    copy_set(from, to, p);
    clt_strv names = {0};
    assert_int_equal(clt_io_list(to, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++) assert_same_file(from, to, names.v[i]);
    clt_mds *m;
    assert_int_equal(clt_mds_open(from, NULL, &m), CLT_OK);
    assert_int_equal(names.n, clt_mds_num_shards(m) + 1);
    clt_mds_close(m);
    clt_mds_writer *w; /* a dataset is never overwritten */
    assert_int_equal(clt_mds_writer_create(to, p, &w), CLT_BAD_CONFIG);
    clt_strv_free(&names);
    clt_io_remove_tree(dir);
    clt_free(from);
    clt_free(dir);
    clt_free(to);
}

static void test_rewrite(void **state) {
    (void)state;
    check_rewrite("tokens_i32/train", &(clt_mds_writer_params){.size_limit = 3000});
    check_rewrite("tokens_i32/val", &(clt_mds_writer_params){.size_limit = 1 << 26});
    check_rewrite("tokens_i32_packed", &(clt_mds_writer_params){.size_limit = 6000, .hashes = "xxh64,sha1"});
    check_rewrite("text_str", &(clt_mds_writer_params){.size_limit = 1500, .text = true});
    check_rewrite("tokens_i32_bz2",
                  &(clt_mds_writer_params){.size_limit = 4000, .compression = "bz2", .hashes = "sha1"});
    check_rewrite("tokens_i32_br",
                  &(clt_mds_writer_params){.size_limit = 4000, .compression = "br", .hashes = "sha1"});
}

/* zstd's bytes depend on its version, so the compressed copy is read back instead. */
static void test_rewrite_zstd(void **state) {
    (void)state;
    char *dir = scratch_dir(), *a = clt_path_join(dir, "a"), *b = clt_path_join(dir, "b");
    copy_set(SETS "tokens_i32_zstd19", a,
             &(clt_mds_writer_params){
                 .size_limit = 4000, .compression = "zstd:19", .hashes = "blake2b,sha3_512,xxh32"});
    clt_mds *m;
    size_t bad;
    assert_int_equal(clt_mds_open(a, &(clt_mds_params){.validate_hash = "sha3_512"}, &m), CLT_OK);
    assert_int_equal(clt_mds_num_shards(m), 2);
    assert_int_equal(clt_mds_verify(m, 0, NULL, &bad), CLT_OK);
    clt_mds_close(m);
    copy_set(a, b, &(clt_mds_writer_params){.size_limit = 4000});
    json_t *want = golden_load(SETS "tokens_i32_zstd19/samples.json"), *list = json_object_get(want, "list");
    assert_int_equal(clt_mds_open(b, NULL, &m), CLT_OK);
    for (size_t i = 0; i < json_array_size(list); i++) check_tokens(m, json_array_get(list, i), "rewritten");
    clt_mds_close(m);
    json_decref(want);
    clt_io_remove_tree(dir);
    clt_free(dir);
    clt_free(a);
    clt_free(b);
}

/* The published 229-byte shard. */
static void test_small_shard(void **state) {
    (void)state;
    static const unsigned char head[] = {2, 0, 0, 0, 0xc5, 0, 0, 0, 0xd7, 0, 0, 0, 0xe5, 0, 0, 0};
    static const unsigned char tail[] = {0x0e, 0, 0,    0, 4, 3, 1, 0, 0,    0,    2, 0, 0, 0, 3, 0,
                                         0,    0, 0x0a, 0, 0, 0, 4, 2, 0x50, 0xc4, 0, 0, 0, 0, 0, 0};
    char *dir = scratch_dir(), *path = clt_path_join(dir, "shard.00000.mds"), *data;
    clt_mds_writer_params p;
    clt_mds_writer *w;
    size_t n;
    clt_mds_writer_params_default(&p);
    assert_int_equal(clt_mds_writer_create(dir, &p, &w), CLT_OK);
    assert_int_equal(clt_mds_writer_add(w, (const int32_t[]){1, 2, 3}, 3), CLT_OK);
    assert_int_equal(clt_mds_writer_add(w, (const int32_t[]){50256, 0}, 2), CLT_OK);
    assert_int_equal(clt_mds_writer_add(w, NULL, 0), CLT_BAD_DATA);
    assert_int_equal(clt_mds_writer_finish(w), CLT_OK);
    assert_int_equal(clt_io_read_all(path, 1000, &data, &n), CLT_OK);
    assert_int_equal(n, 229);
    assert_memory_equal(data, head, sizeof head);
    assert_memory_equal(data + n - sizeof tail, tail, sizeof tail);
    clt_io_remove_tree(dir);
    clt_free(data);
    clt_free(path);
    clt_free(dir);
}

/* An aborted dataset leaves nothing that a reader could take for one. */
static void test_abort(void **state) {
    (void)state;
    char *dir = scratch_dir();
    clt_mds_writer *w;
    clt_strv names = {0};
    clt_mds_writer_params p = {.size_limit = 300};
    assert_int_equal(clt_mds_writer_create(dir, &p, &w), CLT_OK);
    for (int i = 0; i < 50; i++)
        assert_int_equal(clt_mds_writer_add(w, (const int32_t[]){i, i, i, i}, 4), CLT_OK);
    assert_true(clt_mds_writer_shards(w) > 3);
    clt_mds_writer_abort(w);
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    assert_int_equal(names.n, 0);
    assert_int_equal(clt_mds_writer_create(dir, &p, &w), CLT_OK);
    assert_int_equal(clt_mds_writer_finish(w), CLT_BAD_DATA); /* no sample */
    assert_int_equal(
        clt_mds_writer_create(dir, &(clt_mds_writer_params){.size_limit = 300, .compression = "lz4"}, &w),
        CLT_BAD_CONFIG);
    assert_int_equal(
        clt_mds_writer_create(dir, &(clt_mds_writer_params){.size_limit = 300, .compression = "zstd:23"}, &w),
        CLT_BAD_CONFIG);
    assert_int_equal(
        clt_mds_writer_create(dir, &(clt_mds_writer_params){.size_limit = 300, .hashes = "sha1,crc"}, &w),
        CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "unknown checksum 'crc'; known are blake2b, "));
    assert_int_equal(clt_mds_writer_create(dir, &(clt_mds_writer_params){.size_limit = (int64_t)1 << 32}, &w),
                     CLT_BAD_CONFIG);
    clt_strv_free(&names);
    clt_io_remove_tree(dir);
    clt_free(dir);
}

/* --- small pieces --- */

static void test_utf8(void **state) {
    (void)state;
    static const char *const good[] = {
        "", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x99\x82", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"};
    static const char *const bad[] = {
        "\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "a\xe2\x82"};
    for (size_t i = 0; i < CLT_COUNT_OF(good); i++) assert_true(clt_utf8_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) assert_false(clt_utf8_valid(bad[i], strlen(bad[i])));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets),           cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_digests),        cmocka_unit_test(test_damaged),

        cmocka_unit_test(test_raw_beside_zip), cmocka_unit_test(test_raw_beside_gz),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_steady),
        cmocka_unit_test(test_rewrite),        cmocka_unit_test(test_rewrite_zstd),
        cmocka_unit_test(test_small_shard),    cmocka_unit_test(test_abort),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
