/* Damage to a checkpoint of 64 KiB: every single bit of every file is flipped, files are cut at every length
 * and zeroed from every block on, chunks are swapped. All damage is found, and the message says where it is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

#define RUN "mem:///run"
#define CKPT RUN "/ba1"
#define DATA CKPT "/data.00000.bin"

static memfs *fs;
static cu_state state_a, state_b;
static float values[1 << 14];

/* Noise, which does not compress, and a tensor of zeros, which does. */
static void create_state(cu_state *s, uint64_t seed) {
    memset(s, 0, sizeof *s);
    clt_slab_table_add(&s->table, "transformer.wte.weight", 2, (int64_t[]){67, 80});
    clt_slab_table_add(&s->table, "transformer.blocks.0.norm_1.weight", 1, (int64_t[]){80});
    clt_slab_table_add(&s->table, "transformer.norm_f.weight", 1, (int64_t[]){80});
    clt_slab_table_add(&s->table, "transformer.zero.weight", 1, (int64_t[]){2000});
    clt_slab_table_finish(&s->table);
    static const char *const roles[] = {"weight", "exp_avg", "exp_avg_sq"};
    for (int p = 0; p < CU_PARTS; p++) {
        s->host[p] = clt_calloc(s->table.total, sizeof(float));
        s->part[p] = (clt_ckpt_part){.role = roles[p], .host = s->host[p]};
    }
    cu_state_fill(s, seed);
    for (int p = 0; p < CU_PARTS; p++) memset(s->host[p] + s->table.entry[3].offset, 0, 2000 * sizeof(float));
}

static void save(cu_state *s, const char *name, int64_t batch) {
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(s, RUN);
    clt_checkpoint_state n = cu_numbers(batch);
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, name, &n), CLT_OK);
    clt_ckpt_writer_destroy(w);
}

static int set_up(void **state) {
    (void)state;
    fs = mem_mount("mem");
    create_state(&state_a, 1);
    create_state(&state_b, 2);
    save(&state_a, "ba1", 1);
    save(&state_b, "ba2", 2);
    clt_error_quiet(true);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    clt_error_quiet(false);
    cu_state_free(&state_a);
    cu_state_free(&state_b);
    clt_io_unregister("mem");
    mem_destroy(fs);
    return 0;
}

static clt_status open_and_verify(void) {
    clt_ckpt_reader *r = NULL;
    clt_status st = clt_ckpt_open(CKPT, &r);
    if (st == CLT_OK) st = clt_ckpt_verify(r);
    clt_ckpt_close(r);
    return st;
}

/* The message names file, tensor, role, chunk and offset. */
static void check_message(const clt_manifest *m, const clt_man_chunk *c) {
    const clt_man_tensor *t = &m->tensor[c->tensor];
    char want[512];
    snprintf(want, sizeof want,
             "data.00000.bin is damaged: tensor '%s' (%s), chunk 0 of 1, bytes [%llu, +%llu)", t->name,
             t->role, (unsigned long long)c->at.offset, (unsigned long long)c->at.stored);
    if (!strstr(clt_last_error(), want)) fail_msg("'%s' does not say: %s", clt_last_error(), want);
}

static void test_data_bits(void **state) {
    (void)state;
    clt_manifest *m;
    clt_ckpt_reader *r;
    size_t n, flips = 0;
    unsigned char *data = mem_file(fs, DATA, &n);
    assert_true(n >= 65536);
    assert_int_equal(clt_manifest_load(CKPT, true, &m), CLT_OK);
    assert_int_equal(clt_ckpt_open(CKPT, &r), CLT_OK);
    for (size_t k = 0; k < m->chunks; k++) {
        const clt_man_chunk *c = &m->chunk[k];
        for (size_t bit = 8 * c->at.offset; bit < 8 * (c->at.offset + c->at.stored); bit++, flips++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            if (clt_ckpt_read(r, (int)c->tensor, c->first, values, c->count) != CLT_BAD_DATA)
                fail_msg("bit %zu is not found", bit);
            check_message(m, c);
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    assert_true(flips == 8 * n); /* the chunks cover the file */
    clt_ckpt_close(r);
    clt_manifest_free(m);
    assert_int_equal(open_and_verify(), CLT_OK);
    print_message("%zu flips of a bit in %zu bytes of data: %zu found, 0 not\n", flips, n, flips);
}

static void test_manifest_bits(void **state) {
    (void)state;
    size_t n;
    unsigned char *text = mem_file(fs, CKPT "/manifest.json", &n);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        text[bit / 8] ^= (unsigned char)(1 << bit % 8);
        if (open_and_verify() != CLT_BAD_DATA || !strstr(clt_last_error(), CKPT "/manifest.json"))
            fail_msg("bit %zu of the manifest: %s", bit, clt_last_error());
        text[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    assert_int_equal(open_and_verify(), CLT_OK);
    print_message("%zu flips of a bit in %zu bytes of manifest: all found\n", 8 * n, n);
}

/* The checksum inside the frames, for damage that happens before the manifest's hash is computed: a flip
 * gives an error or the same values. */
static void test_frame_bits(void **state) {
    (void)state;
    clt_manifest *m;
    size_t n, flips = 0, harmless = 0;
    const unsigned char *data = mem_file(fs, DATA, &n);
    assert_int_equal(clt_manifest_load(CKPT, true, &m), CLT_OK);
    clt_chunk_codec *codec;
    const char *why;
    assert_int_equal(clt_chunk_codec_create(CLT_COUNT_OF(values), &codec), CLT_OK);
    float *want = clt_calloc(CLT_COUNT_OF(values), sizeof *want);
    for (size_t k = 0; k < m->chunks; k++) {
        clt_ckpt_stored at = m->chunk[k].at;
        size_t count = m->chunk[k].count;
        unsigned char *raw = clt_chunk_codec_buffer(codec);
        if (at.stored > 512) continue;
        memcpy(raw, data + at.offset, at.stored);
        assert_int_equal(clt_chunk_decode(codec, &at, want, count, &why), CLT_OK);
        for (size_t bit = 0; bit < 8 * at.stored; bit++, flips++) {
            raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
            at.hash = clt_hash(raw, at.stored);
            if (clt_chunk_decode(codec, &at, values, count, &why) == CLT_OK) {
                harmless++;
                if (memcmp(values, want, count * sizeof *want))
                    fail_msg("chunk %zu, bit %zu: other values", k, bit);
            }
            raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    assert_true(flips > 10000);
    clt_free(want);
    clt_chunk_codec_destroy(codec);
    clt_manifest_free(m);
    print_message("%zu flips behind the manifest's hash: %zu give the same values, the others an error\n",
                  flips, harmless);
}

/* --- cut files: storage on which the data file ends early --- */

static const clt_io_ops *whole; /* the unchanged functions */
static uint64_t cut_at;
static void *cut_handle;

static int cut_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle) {
    int e = whole->open(c, path, mode, handle);
    if (!e && !strcmp(path, &DATA[clt_path_scheme(DATA)])) cut_handle = *handle;
    return e;
}
static int cut_size(clt_io_component *c, void *h, uint64_t *bytes) {
    int e = whole->size(c, h, bytes);
    if (!e && h == cut_handle) *bytes = cut_at;
    return e;
}
static int cut_pread(clt_io_component *c, void *h, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    *done = 0;
    if (h == cut_handle) bytes = offset < cut_at ? CLT_MIN(bytes, cut_at - offset) : 0;
    return whole->pread(c, h, dst, bytes, offset, done);
}

static void test_cut(void **state) {
    (void)state;
    whole = mem_component(fs)->ops;
    clt_io_ops cut = *whole;
    clt_ckpt_reader *r;
    size_t n, zeroed = 0;
    unsigned char *data = mem_file(fs, DATA, &n), *keep = clt_memdup(data, n);
    assert_int_equal(clt_ckpt_open(CKPT, &r), CLT_OK);
    cut.open = cut_open;
    cut.size = cut_size;
    cut.pread = cut_pread;
    mem_component(fs)->ops = &cut;
    for (cut_at = 0; cut_at < n; cut_at++)
        if (open_and_verify() != CLT_BAD_DATA || !strstr(clt_last_error(), DATA))
            fail_msg("cut at %zu: %s", (size_t)cut_at, clt_last_error());
    /* The file is cut while it is open: the last chunks are missing. */
    clt_ckpt_read(r, 0, 0, values, 1);
    for (cut_at = 0; cut_at < n; cut_at += 64) assert_int_equal(clt_ckpt_verify(r), CLT_BAD_DATA);
    mem_component(fs)->ops = whole;
    for (size_t from = 0; from < n; from += 512, zeroed++) {
        memset(data + from, 0, n - from);
        assert_int_equal(open_and_verify(), CLT_BAD_DATA);
        memcpy(data, keep, n);
    }
    assert_int_equal(open_and_verify(), CLT_OK);
    clt_ckpt_close(r);
    clt_free(keep);
    print_message("%zu lengths, %zu lengths with zeros after them: all found\n", n, zeroed);
}

static void test_swaps(void **state) {
    (void)state;
    clt_manifest *m, *other;
    size_t n, n2, swaps = 0, replaced = 0;
    unsigned char *a = mem_file(fs, DATA, &n), *b = mem_file(fs, RUN "/ba2/data.00000.bin", &n2),
                  *keep = clt_memdup(a, n);
    assert_int_equal(clt_manifest_load(CKPT, true, &m), CLT_OK);
    assert_int_equal(clt_manifest_load(RUN "/ba2", true, &other), CLT_OK);
    for (size_t i = 0; i < m->chunks; i++) {
        clt_ckpt_stored x = m->chunk[i].at, z = other->chunk[i].at;
        for (size_t k = i + 1; k < m->chunks; k++) {
            clt_ckpt_stored y = m->chunk[k].at;
            if (x.stored != y.stored || !memcmp(keep + x.offset, keep + y.offset, x.stored)) continue;
            memcpy(a + x.offset, keep + y.offset, x.stored);
            memcpy(a + y.offset, keep + x.offset, x.stored);
            assert_int_equal(open_and_verify(), CLT_BAD_DATA);
            memcpy(a, keep, n);
            swaps++;
        }
        if (x.stored != z.stored || !memcmp(keep + x.offset, b + z.offset, x.stored)) continue;
        memcpy(a + x.offset, b + z.offset, x.stored);
        assert_int_equal(open_and_verify(), CLT_BAD_DATA);
        memcpy(a, keep, n);
        replaced++;
    }
    assert_true(swaps >= 10 && replaced >= 6);
    clt_manifest_free(m);
    clt_manifest_free(other);
    clt_free(keep);
    print_message("%zu swaps of chunks, %zu chunks of another step in place: all found\n", swaps, replaced);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_bits),  cmocka_unit_test(test_manifest_bits),
        cmocka_unit_test(test_frame_bits), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_swaps),
    };
    clt_log_set_level(CLT_LOG_ERROR);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
