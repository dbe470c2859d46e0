/* The compressions of MDS shards: against the reference's files, all levels there and back, and every kind
 * of damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_philox.h"
#include "runtime/data/clt_codec.h"

static const char *const names[] = {"zstd", "gz", "bz2", "br", "snappy"};

static char *pack(const clt_codec *c, int level, const char *data, size_t n, size_t *size) {
    char *out = clt_malloc(clt_codec_bound(c, n) + 1);
    assert_int_equal(clt_codec_compress(c, level, data, n, out, size), CLT_OK);
    assert_true(*size <= clt_codec_bound(c, n));
    return out;
}

/* Data of which part repeats. */
static char *make_data(size_t n) {
    char *data = clt_malloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        uint32_t r[4];
        clt_philox4x32((uint32_t[4]){(uint32_t)i, 0, 0, 0}, (uint32_t[2]){3, 0}, r);
        data[i] = (char)(r[0] % 3 || i < 300 ? r[1] % 7 * 30 : (uint32_t)data[i - 300]);
    }
    return data;
}

/* --- the reference's files --- */

static void read_shard(const char *name, char **data, size_t *n) {
    char *path = clt_format("test/golden/mds/tokens_i32_%s/shard.00000.mds.%s", name, name);
    assert_int_equal(clt_io_read_all(path, 1 << 20, data, n), CLT_OK);
    clt_free(path);
}

/* The same bytes as the reference's packages write, except for the time in a gz header. (zstd's depend on its
 * version; the reference's snappy is another implementation.) */
static void test_reference_bytes(void **state) {
    (void)state;
    enum { MOST = 4096, GZ_TIME = 4 };
    static const struct {
        const char *name;
        size_t raw;
    } same[] = {{"gz", 3845}, {"bz2", 3846}, {"br", 3845}};
    for (size_t i = 0; i < CLT_COUNT_OF(same); i++) {
        const clt_codec *c;
        char raw[MOST], *zip, *again;
        size_t n, k;
        int level;
        assert_int_equal(clt_codec_parse(same[i].name, &c, &level), CLT_OK);
        read_shard(same[i].name, &zip, &n);
        assert_int_equal(clt_codec_decompress(c, "shard", zip, n, raw, same[i].raw), CLT_OK);
        again = pack(c, level, raw, same[i].raw, &k);
        if (strcmp(same[i].name, "gz") == 0) memset(zip + GZ_TIME, 0, 4);
        assert_int_equal(n, k);
        assert_memory_equal(zip, again, n);
        clt_free(zip);
        clt_free(again);
    }
}

/* --- there and back --- */

static void check_level(const char *text, const char *data, size_t n) {
    const clt_codec *c;
    int level;
    size_t size;
    char *out = clt_malloc(n + 1);
    assert_int_equal(clt_codec_parse(text, &c, &level), CLT_OK);
    char *packed = pack(c, level, data, n, &size);
    if (clt_codec_decompress(c, text, packed, size, out, n) != CLT_OK || memcmp(out, data, n))
        fail_msg("%s: %zu bytes differ", text, n);
    assert_true(clt_codec_plausible(c, size, n));
    clt_free(out);
    clt_free(packed);
}

static void test_levels(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int first, last;
    } levels[] = {{"zstd", 1, 22}, {"gz", 0, 9}, {"bz2", 1, 9}, {"br", 0, 11}};
    static const size_t sizes[] = {1, 100, 70000};
    char *data = make_data(70000);
    for (size_t s = 0; s < CLT_COUNT_OF(sizes); s++) {
        for (size_t i = 0; i < CLT_COUNT_OF(names); i++) check_level(names[i], data, sizes[s]);
        for (size_t i = 0; i < CLT_COUNT_OF(levels); i++)
            for (int k = levels[i].first; k <= levels[i].last; k++) {
                char *text = clt_format("%s:%d", levels[i].name, k);
                check_level(text, data, sizes[s]);
                clt_free(text);
            }
    }
    clt_free(data);
}

/* More than a megabyte of one byte: the highest ratios are still plausible. */
static void test_ratio(void **state) {
    (void)state;
    enum { ZEROS = 20 << 20 };
    char *data = clt_calloc(1, ZEROS);
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        check_level(strcmp(names[i], "br") == 0 ? "br:5" : names[i], data, ZEROS);
    clt_free(data);
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"lz4", "known are zstd (zstd:1 to zstd:22), gz (gz:0 to gz:9), bz2 (bz2:1 to bz2:9), br (br:0 to "
                "br:11), snappy"},
        {"zstd:0", "the level must be 1 to 22"},
        {"zstd:23", "the level must be 1 to 22"},
        {"gz:10", "the level must be 0 to 9"},
        {"bz2:0", "the level must be 1 to 9"},
        {"br:12", "the level must be 0 to 11"},
        {"br:", "the level must be 0 to 11"},
        {"br:4x", "the level must be 0 to 11"},
        {"snappy:1", "snappy has no levels"},
        {"", "compression '' cannot be written"},
    };
    const clt_codec *c;
    int level;
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        assert_int_equal(clt_codec_parse(bad[i].text, &c, &level), CLT_BAD_CONFIG);
        if (!strstr(clt_last_error(), bad[i].message)) fail_msg("the message is: %s", clt_last_error());
    }
    static const int defaults[] = {3, 9, 9, 11, 0};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        assert_int_equal(clt_codec_parse(names[i], &c, &level), CLT_OK);
        assert_int_equal(level, defaults[i]);
        assert_string_equal(clt_codec_name(c), names[i]);
        assert_ptr_equal(clt_codec_find(names[i]), c);
    }
    assert_null(clt_codec_find("zst"));
    assert_null(clt_codec_find("zstdx:3"));
}

/* --- damage --- */

/* Decompresses a copy in a block of the exact size, so that a sanitizer sees a read past its end. */
static clt_status unpack(const clt_codec *c, const char *data, size_t n, size_t want) {
    char *copy = clt_memdup(data, n), *out = clt_malloc(want);
    clt_status st = clt_codec_decompress(c, "FILE", copy, n, out, want);
    clt_free(copy);
    clt_free(out);
    return st;
}

static void expect_damage(const clt_codec *c, const char *data, size_t n, size_t want, const char *message) {
    assert_int_equal(unpack(c, data, n, want), CLT_BAD_DATA);
    if (!strstr(clt_last_error(), message))
        fail_msg("%s: the message is: %s", clt_codec_name(c), clt_last_error());
}

static void check_damage(const clt_codec *c, int level) {
    enum { N = 3000 };
    size_t n;
    char *data = make_data(N), *packed = pack(c, level, data, N, &n);
    const bool snappy = strcmp(clt_codec_name(c), "snappy") == 0;
    assert_int_equal(unpack(c, packed, n, N), CLT_OK);
    for (size_t cut = 0; cut < n; cut++) expect_damage(c, packed, cut, N, "FILE");
    expect_damage(c, packed, n - 1, N, snappy ? "damaged snappy data" : "is incomplete or damaged");
    packed[n] = 0;
    expect_damage(c, packed, n + 1, N, snappy ? "damaged snappy data" : "FILE has 1 bytes after its");
    expect_damage(c, packed, n, N - 1, "another size than raw_data.bytes");
    expect_damage(c, packed, n, 1, "larger than raw_data.bytes 1:");
    expect_damage(c, packed, n, N + 1, "another size than raw_data.bytes: 3000 bytes, not 3001");
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit += 3) { /* no crash; codecs without a checksum may accept it */
            packed[i] ^= (char)(1 << bit);
            unpack(c, packed, n, N);
            packed[i] ^= (char)(1 << bit);
        }
    clt_free(data);
    clt_free(packed);
}

static void test_damage(void **state) {
    (void)state;
    clt_log_set_level(CLT_LOG_ERROR);
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        const clt_codec *c;
        int level;
        assert_int_equal(clt_codec_parse(names[i], &c, &level), CLT_OK);
        check_damage(c, level);
    }
    expect_damage(clt_codec_find("gz"), "PK\3\4........", 12, 9, "FILE is not a gz stream");
    expect_damage(clt_codec_find("bz2"), "PK\3\4........", 12, 9, "FILE is not a bz2 stream");
    clt_error_quiet(false);
}

/* A small file that decompresses to much more than it should stops at the limit. */
static void test_bomb(void **state) {
    (void)state;
    enum { ZEROS = 20 << 20, LIMIT = 1000 };
    char *data = clt_calloc(1, ZEROS);
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        const clt_codec *c = clt_codec_find(names[i]);
        size_t n;
        char *packed = pack(c, 1, data, ZEROS, &n);
        expect_damage(c, packed, n, LIMIT, "larger than raw_data.bytes 1000");
        clt_free(packed);
    }
    clt_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_bytes), cmocka_unit_test(test_levels), cmocka_unit_test(test_ratio),
        cmocka_unit_test(test_names),           cmocka_unit_test(test_damage), cmocka_unit_test(test_bomb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
