/* How gemm_wgmma.cl distributes tiles and pieces of tiles (gemm_wgmma_plan.clh) and adds pieces
 * (gemm_wgmma_slices.clh), and which shape of tiles the host prefers, on every device. Waiting for flags and
 * barriers, which only Hopper has, is removed, and one work-item acts as all of a work-group in sequence. */
#include <stdlib.h>
#include <string.h>

#include "runtime/ops/clt_op_gemm_internal.h"
#include "test/test_util.h"

enum { GROUPS = 12, M = 200, N = 600, LDC = 616, TILES_M = 2, MOST_TILES = 8, LOTS = 2, RING = 148 * 1024 };

static const char kernel_text[] =
    "#include \"../gemm/gemm_epilogue.clh\"\n"
    "#define BM (WGS * MB * 64)\n"
    "#define BOX_BYTES 8192\n"
    "#define SLICES 1\n"
    "#define LOOKS_AHEAD 0\n"
    "#define CHUNK_ROW(q) ((int)(half_ * MB + (q) / (BN / 64)) * 64)\n"
    "#define CHUNK_COLUMN(q) ((q) % (BN / 64) * 64)\n"
    "#define CLT_BULK_LOAD(at, from, bytes, bar) \\\n"
    "    for (uint w = 0; w < (bytes) / 16; w++) ((__local float4 *)ring)[(at) / 16 + w] = (from)[w]\n"
    "#define CLT_GLOBAL_ADD4(to, v) *(__global float4 *)(to) += v\n"
    "#define CLT_FLAG_AWAIT(flag, n)\n"
    "#define CLT_FLAG_COUNT(before, flag) before = atomic_inc(flag)\n"
    "#define CLT_FLAG_CLEAR(flag) atomic_xchg(flag, 0u)\n"
    "#define CLT_FENCE_ASYNC_GLOBAL()\n"
    "#define CLT_BAR_EXPECT(bar, bytes)\n"
    "#define CLT_BAR_WAIT(bar, parity)\n"
    "#define CLT_GROUP_SYNC(id, items)\n"
    "#include \"../gemm/gemm_wgmma_plan.clh\"\n"
    "#include \"../gemm/gemm_wgmma_slices.clh\"\n"
    "__kernel void deal_out(PLAN_ARGS, __global uint *found, ulong off) {\n"
    "    found += off;\n"
    "    const gemm_plan p = PLAN_INIT;\n"
    "    gemm_walk w = walk_begin();\n"
    "    while (walk_next(&p, &w)) {\n"
    "        const uint at = atomic_inc(found) * 4 + 4;\n"
    "        const gemm_piece first = first_piece(&p, w.tile);\n"
    "        const bool right = tile_at(&p, tile_place(&p, w.tile)) == w.tile && first.pieces == "
    "w.piece.pieces &&\n"
    "                           first.number + w.piece.place * first.next == w.piece.number;\n"
    "        found[at] = right ? w.tile : ~0u;\n"
    "        found[at + 1] = w.k0;\n"
    "        found[at + 2] = w.k1;\n"
    "        found[at + 3] = w.piece.number;\n"
    "    }\n"
    "}\n"
    "__kernel void add_up(PLAN_ARGS, __global const float4 *part, ulong part_off, __global uint *flags, "
    "ulong "
    "flags_off,\n"
    "                     __global float *c, ulong c_off, ulong ldc) {\n"
    "    __local float4 ring[TILE_QUADS + 16];\n"
    "    const gemm_plan p = PLAN_INIT;\n"
    "    for (uint lot = 0; lot < 2; lot++)\n"
    "        for (uint item = 0; item < WGS * 128; item++)\n"
    "            add_slice(&p, lot, part + part_off / 4, flags + flags_off, ring, 0, 0, c + c_off, ldc, "
    "item);\n"
    "}\n";

typedef struct {
    const char *what;
    uint32_t wgs, mb, bn; /* tiles of wgs * mb * 64 x bn */
    uint32_t steps, group, tiles[LOTS], pieces[LOTS];
    bool accumulate;
} slices_case;

static const slices_case cases[] = {
    {"one lot", 2, 1, 256, 3, 8, {6, 0}, {2, 0}, false},
    {"two lots behind whole tiles", 2, 1, 256, 7, 8, {3, 2}, {2, 3}, true},
    {"many pieces, rows of tiles alone", 2, 1, 256, 23, 1, {2, 1}, {4, 9}, false},
    {"three warpgroups", 3, 1, 192, 5, 8, {3, 5}, {4, 2}, true},
    {"two blocks of rows", 2, 2, 128, 7, 8, {3, 2}, {3, 5}, true},
    {"three warpgroups, many pieces, rows of tiles alone", 3, 1, 192, 23, 1, {1, 1}, {11, 7}, false},
};

typedef struct {
    uint32_t tile, k0, k1, number;
} found_piece;

static uint32_t tiles_n(const slices_case *t) {
    return CLT_CEIL_DIV(N, t->bn);
}

static uint32_t whole_tiles(const slices_case *t) {
    return TILES_M * tiles_n(t) - t->tiles[0] - t->tiles[1];
}

static clt_kernel *kernel_of(int d, const slices_case *t, const char *name) {
    char options[64];
    clt_kernel *k;
    snprintf(options, sizeof options, "-DWGS=%u -DMB=%u -DBN=%u -DEP=%d", t->wgs, t->mb, t->bn,
             t->accumulate ? 32 : 0);
    tu_assert_ok(clt_kernel_from_text(tu_device(d), "test/gemm_slices.cl", kernel_text, name, options, &k),
                 name);
    return k;
}

#define PLAN(t)                                                                                              \
    CLT_U32(M), CLT_U32(N), CLT_U32((t)->steps * 64), CLT_U32(TILES_M), CLT_U32(tiles_n(t)),                 \
        CLT_U32((t)->steps), CLT_U32((t)->group), CLT_U32(whole_tiles(t)), CLT_U32((t)->tiles[0]),           \
        CLT_U32((t)->pieces[0]), CLT_U32((t)->tiles[1]), CLT_U32((t)->pieces[1])

static int by_tile(const void *a, const void *b) {
    const found_piece *x = a, *y = b;
    if (x->tile != y->tile) return x->tile < y->tile ? -1 : 1;
    return x->k0 < y->k0 ? -1 : 1;
}

/* All pieces, by tile and ascending k, after asserting that they are the plan's and cover every tile once. */
static int deal_out(int d, const slices_case *t, found_piece *out) {
    enum { MOST = 64 };
    int32_t words[4 + 4 * MOST] = {0};
    const size_t global = GROUPS, one = 1;
    const clt_ref found = tu_upload_i32(d, words, CLT_COUNT_OF(words));
    const clt_arg args[] = {PLAN(t), CLT_REF(found)};
    tu_assert_ok(clt_launch(kernel_of(d, t, "deal_out"), 1, &global, &one, args, CLT_COUNT_OF(args)),
                 t->what);
    const int32_t *got = tu_download_i32(found, CLT_COUNT_OF(words));
    const uint32_t cut = t->tiles[0] * t->pieces[0] + t->tiles[1] * t->pieces[1], n = whole_tiles(t) + cut;
    assert_int_equal(got[0], n);
    memcpy(out, got + 4, n * sizeof *out);
    qsort(out, n, sizeof *out, by_tile);
    bool seen[MOST] = {false};
    for (uint32_t i = 0, at = 0; i < n; i++) {
        const bool last = i + 1 == n || out[i + 1].tile != out[i].tile;
        assert_int_equal(out[i].k0, at);
        assert_true(out[i].k1 > at);
        at = last ? 0 : out[i].k1;
        if (last) assert_int_equal(out[i].k1, t->steps);
        assert_true(out[i].number < n && (out[i].number < cut) == (out[i].tile >= whole_tiles(t)));
        assert_false(seen[out[i].number]);
        seen[out[i].number] = true;
    }
    return (int)n;
}

/* The place of row i, column j of a piece: boxes of 64 x 32, whose 16-byte pieces are swizzled over eight
 * rows, in blocks of 64 rows. */
static size_t place(const slices_case *t, int i, int j) {
    return (size_t)((i / 64 * ((int)t->bn / 32) + j / 32) * 2048 + i % 64 * 32 +
                    ((j % 32 / 4) ^ (i & 7)) * 4 + j % 4);
}

/* Adds the pieces in their order, then c, in fp32. */
static void expect(const slices_case *t, const found_piece *p, int n, const float *part, float *c) {
    const int64_t across = tiles_n(t), bm = t->wgs * t->mb * 64, bn = t->bn;
    const size_t piece = (size_t)(bm * bn);
    for (int x = 0; x < n; x++) {
        if (p[x].tile < whole_tiles(t) || p[x].k0 > 0) continue;
        const int64_t rows = t->group == 1 ? p[x].tile / across : p[x].tile % TILES_M,
                      column = t->group == 1 ? p[x].tile % across : p[x].tile / TILES_M;
        for (int i = 0; i < bm && rows * bm + i < M; i++)
            for (int j = 0; j < bn && column * bn + j < N; j++) {
                float sum = part[(size_t)p[x].number * piece + place(t, i, j)],
                      *to = &c[(rows * bm + i) * LDC + column * bn + j];
                for (int y = x + 1; y < n && p[y].tile == p[x].tile; y++)
                    sum += part[(size_t)p[y].number * piece + place(t, i, j)];
                *to = t->accumulate ? *to + sum : sum;
            }
    }
}

static void add_up(int d, const slices_case *t) {
    found_piece found[64];
    const int n = deal_out(d, t, found);
    const uint32_t numbers = t->tiles[0] * t->pieces[0] + t->tiles[1] * t->pieces[1];
    const size_t words = (size_t)numbers * t->wgs * t->mb * 64 * t->bn, global = GROUPS, one = 1;
    float *part = tu_random(words, 1, 1.0f), *c = tu_random((size_t)M * LDC, 2, 1.0f);
    int32_t flags[MOST_TILES];
    for (uint32_t i = 0; i < MOST_TILES; i++) /* as if every warpgroup had sent all of them */
        flags[i] = (int32_t)(i < t->tiles[0]                 ? t->wgs * t->pieces[0]
                             : i < t->tiles[0] + t->tiles[1] ? t->wgs * t->pieces[1]
                                                             : 0);
    const clt_ref part_ref = tu_upload_at(d, part, words, 8), c_ref = tu_upload_at(d, c, (size_t)M * LDC, 8),
                  flags_ref = tu_upload_i32(d, flags, MOST_TILES);
    const clt_arg args[] = {PLAN(t), CLT_REF(part_ref), CLT_REF(flags_ref), CLT_REF(c_ref), CLT_U64(LDC)};
    tu_assert_ok(clt_launch(kernel_of(d, t, "add_up"), 1, &global, &one, args, CLT_COUNT_OF(args)), t->what);
    expect(t, found, n, part, c);
    tu_assert_words(t->what, tu_download(c_ref, (size_t)M * LDC), c, (size_t)M * LDC);
    const int32_t *left = tu_download_i32(flags_ref, MOST_TILES);
    for (int i = 0; i < MOST_TILES; i++) assert_int_equal(left[i], 0);
    tu_release();
    clt_free(part);
    clt_free(c);
}

static void pieces_are_dealt_out_and_added(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        if (clt_device_get_facts(tu_device(d))->local_mem < RING) {
            printf("skip: %s has less than %d KiB of local memory\n", tu_device_name(d), RING / 1024);
            continue;
        }
        for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) add_up(d, &cases[i]);
    }
}

/* One round of 192 x 192 tiles does the work of one and a half of 128 x 256, and one of these more than one
 * of those, on as many units as there are. */
static void tiles_are_chosen_by_time(void **state) {
    (void)state;
    clt_variant *row;
    const int n = clt_variant_rows("gemm", &row);
    for (int d = 0; d < tu_device_count(); d++) {
        const int64_t units = CLT_MAX(clt_device_get_facts(tu_device(d))->compute_units, 2);
        clt_gemm_params p = {.form = CLT_GEMM_TN, .k = 32768, .k_group = 32768};
        p.a.type = p.b.type = CLT_BF16;
        p.c.ref = tu_upload(d, (const float[]){0}, 1);
        for (int i = 0; i < n; i++) {
            const bool square = !strcmp(row[i].id, "wgmma_192x192");
            if (strcmp(row[i].body, "wgmma") != 0) continue;
            p.m = 192 * units, p.n = 192;
            assert_true(clt_gemm_wgmma.does_well(&row[i], &p));
            p.m = 128 * units, p.n = 256;
            assert_int_equal(clt_gemm_wgmma.does_well(&row[i], &p), !square);
        }
        tu_release();
    }
    clt_free(row);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_are_dealt_out_and_added),
                                       cmocka_unit_test(tiles_are_chosen_by_time)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
