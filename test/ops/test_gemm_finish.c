/* The work of the finishers of clkernels/gemm/gemm_wgmma_finish.clh, and with OWN of the multiplying warps,
 * on a box of results, on every device. Barriers and the copy engine, which only Hopper has, are removed, and
 * one work-item acts as the 32 of a warp in sequence. So the places of a box's elements in c and pre,
 * clipping at the edges, and rounding are tested without such a GPU. */
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

enum { SIDE = 64, BOXES = 8, BOX = SIDE * SIDE, ROWS = 171, COLUMNS = 312, UNTOUCHED = 1024 };

static const char kernel_text[] =
    "#include \"../gemm/gemm_epilogue.clh\"\n"
    "#define MB 1\n"
    "#define BM 128\n"
    "#define BN 256\n"
    "#define BOXES 4\n"
    "#define BOX_BYTES 8192\n"
    "#define ACT_OF CLT_ACT_FN(ACT)\n"
    "#define GRAD_OF CLT_ACT_GRAD_FN(GRAD_ACT)\n"
    "#define AGAIN_OF CLT_ACT_FN(GRAD_ACT)\n"
    "#define PACK_C(r, lo, hi) r = (uint)CLT_ROUND(C_TYPE, lo) | (uint)CLT_ROUND(C_TYPE, hi) << 16\n"
    "#define CHUNK_ROW(q) ((int)(half_ * MB + (q) / (BN / 64)) * 64)\n"
    "#define CHUNK_COLUMN(q) ((q) % (BN / 64) * 64)\n"
    "#define CLT_BAR_WAIT(bar, parity)\n"
    "#define CLT_BAR_EXPECT(bar, bytes)\n"
    "#define CLT_BAR_ARRIVE(bar) (void)(bar)\n"
    "#define CLT_TMA_LOAD2(to, map, x, y, bar)\n"
    "#define CLT_TMA_STORE2(map, x, y, from)\n"
    "#define CLT_TMA_COMMIT()\n"
    "#define CLT_TMA_WAIT_READ(left)\n"
    "#define CLT_WARP_SYNC()\n"
    "#define CLT_STORE16_IF(yes, to, v) if (yes) *(__global uint4 *)(to) = v\n"
    "#define CLT_MAP_ACQUIRE(map)\n"
    "#define CLT_LOCAL_ADDRESS(p) 0\n"
    "#define FILLED_AT 0\n"
    "#define SENT_AT 0\n"
    "#define FACTOR_AT 0\n"
    "#define ROLE static inline\n"
    "typedef struct { __global clt_gemm_out *at; ulong ld; } gemm_matrix;\n"
    "typedef struct { gemm_matrix c, more; } gemm_results;\n"
    "typedef struct { uint m, n; } gemm_plan;\n"
    "typedef struct { uint tile; } gemm_walk;\n"
    "static inline bool walk_next_result(const gemm_plan *p, gemm_walk *w) { return false; }\n"
    "static inline uint2 tile_place(const gemm_plan *p, uint t) { return (uint2)(0, 0); }\n"
    "#include \"../gemm/gemm_wgmma_finish.clh\"\n"
    "__kernel void finish_one(__global uint4 *boxes, ulong boxes_off, __global ushort *c, ulong c_off, ulong "
    "ldc,\n"
    "                         __global ushort *more, ulong more_off, ulong ldmore, uint m, uint n, uint x, "
    "uint y,\n"
    "                         uint half_, uint q) {\n"
    "    __local uint4 copy[2 * BOXES * BOX_BYTES / 16];\n"
    "    const gemm_plan p = {m, n};\n"
    "    for (uint i = 0; i < 2 * BOXES * BOX_BYTES / 16; i++) copy[i] = boxes[boxes_off / 8 + i];\n"
    "    for (uint lane = 0; lane < 32; lane++) {\n"
    "        const gemm_finisher f = {(__local char *)copy, 0, 0, 0, 0, 1, lane, {c + c_off, ldc},\n"
    "                                 {more + more_off, ldmore}};\n"
    "        if (!OWN || q < 3) finish_box(&f, &p, (uint2)(x, y), half_, q, 0);\n"
    "#if OWN\n"
    "        for (uint warp = 0; q == 3 && warp < 4; warp++) {\n"
    "            gemm_own o = {copy + (half_ * 4 + 3) * (BOX_BYTES / 16) + warp * 128 + lane, f.c, f.more, "
    "0, 0, 0};\n"
    "            own_begin(&o, (uint2)(x, y), half_, warp, lane);\n"
    "            own_rest(&o, &p);\n"
    "        }\n"
    "#endif\n"
    "    }\n"
    "    for (uint i = 0; i < 2 * BOXES * BOX_BYTES / 16; i++) boxes[boxes_off / 8 + i] = copy[i];\n"
    "}\n";

typedef struct {
    const char *what, *options;
    clt_dtype type;
    clt_activation act;
    bool derivative, more; /* more: pre, or the recomputed activation */
    uint32_t first;        /* the first tested chunk, 3 if it is OWN's */
} finish_case;

static const finish_case cases[] = {
    {"bf16 gelu and pre", "-DC_TYPE=1 -DAUX_TYPE=1 -DACT=1 -DEP=7 -DAGAIN=0 -DOWN=0", CLT_BF16, CLT_ACT_GELU,
     false, true, 2},
    {"bf16 gelu and pre, own", "-DC_TYPE=1 -DAUX_TYPE=1 -DACT=1 -DEP=7 -DAGAIN=0 -DOWN=1", CLT_BF16,
     CLT_ACT_GELU, false, true, 3},
    {"fp16 silu", "-DC_TYPE=2 -DAUX_TYPE=2 -DACT=5 -DEP=4 -DAGAIN=0 -DOWN=0", CLT_F16, CLT_ACT_SILU, false,
     false, 2},
    {"bf16 derivative of gelu", "-DC_TYPE=1 -DAUX_TYPE=1 -DGRAD_ACT=1 -DEP=8 -DAGAIN=0 -DOWN=0", CLT_BF16,
     CLT_ACT_GELU, true, false, 2},
    {"bf16 derivative of gelu, own", "-DC_TYPE=1 -DAUX_TYPE=1 -DGRAD_ACT=1 -DEP=8 -DAGAIN=0 -DOWN=1",
     CLT_BF16, CLT_ACT_GELU, true, false, 3},
    {"fp16 derivative of gelu, again", "-DC_TYPE=2 -DAUX_TYPE=2 -DGRAD_ACT=1 -DEP=8 -DAGAIN=1 -DOWN=0",
     CLT_F16, CLT_ACT_GELU, true, true, 2},
};

/* The place of row i, column j in a box whose 16-byte pieces are swizzled over eight rows. */
static size_t place(int i, int j) {
    return (size_t)(i * SIDE + ((j / 8) ^ (i & 7)) * 8 + j % 8);
}

/* Tensors of 16-bit elements at multiples of 16 bytes, as these kernels require; n is even. */
static clt_ref upload(int d, clt_dtype type, const float *x, size_t n) {
    uint16_t *words = clt_malloc(n * sizeof *words);
    clt_ref_narrow(type, x, n, words);
    const clt_ref r = tu_upload_at(d, words, n / 2, 8);
    clt_free(words);
    return (clt_ref){r.buf, r.off * 2};
}

static void assert_holds(const char *what, clt_dtype type, clt_ref r, const float *want, size_t n) {
    float *got = clt_malloc(n * sizeof *got);
    clt_ref_widen(type, tu_download_i32((clt_ref){r.buf, r.off / 2}, n / 2), n, got);
    tu_assert_words(what, got, want, n);
    clt_free(got);
}

static float *untouched(int64_t ld) {
    float *x = clt_malloc((size_t)(ROWS * ld) * sizeof *x);
    for (int64_t i = 0; i < ROWS * ld; i++) x[i] = UNTOUCHED;
    return x;
}

/* The box of chunk q of warpgroup half in tile (x, y). */
static void finish_one(int d, const finish_case *f, clt_kernel *k, uint32_t x, uint32_t y, uint32_t half,
                       uint32_t q) {
    const int64_t ldc = COLUMNS + 8, ldmore = COLUMNS + 16;
    const size_t box = (half * 4 + q) * BOX, one = 1;
    float *boxes = tu_random(BOXES * BOX, 7 + x + 2 * y + 4 * half + 8 * q, 6.0f), *c = untouched(ldc),
          *more = untouched(ldmore);
    clt_ref_round(f->type, boxes, BOXES * BOX);
    clt_ref boxes_ref = upload(d, f->type, boxes, BOXES * BOX);
    clt_ref c_ref = upload(d, f->type, c, (size_t)(ROWS * ldc));
    clt_ref more_ref = upload(d, f->type, more, (size_t)(ROWS * ldmore));
    const clt_arg args[] = {CLT_REF(boxes_ref), CLT_REF(c_ref), CLT_U64(ldc),     CLT_REF(more_ref),
                            CLT_U64(ldmore),    CLT_U32(ROWS),  CLT_U32(COLUMNS), CLT_U32(x),
                            CLT_U32(y),         CLT_U32(half),  CLT_U32(q)};
    tu_assert_ok(clt_launch(k, 1, &one, &one, args, CLT_COUNT_OF(args)), f->what);
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            float *in = &boxes[box + place(i, j)];
            const int64_t row = x * 128 + half * 64 + i, column = y * 256 + q * 64 + j;
            const float act = clt_ref_rounded(f->type, clt_ref_act(f->act, *in));
            if (row < ROWS && column < COLUMNS) {
                if (!f->derivative) c[row * ldc + column] = act;
                if (f->more) more[row * ldmore + column] = f->derivative ? act : *in;
            }
            if (f->derivative) *in = clt_ref_rounded(f->type, clt_ref_act_grad(f->act, *in));
        }
    assert_holds(f->what, f->type, boxes_ref, boxes, BOXES * BOX);
    assert_holds(f->what, f->type, c_ref, c, (size_t)(ROWS * ldc));
    assert_holds(f->what, f->type, more_ref, more, (size_t)(ROWS * ldmore));
    tu_release();
    clt_free(boxes);
    clt_free(c);
    clt_free(more);
}

static void boxes_are_finished_in_place(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        if (clt_device_get_facts(tu_device(d))->local_mem < BOXES * BOX * 2) {
            printf("skip: %s has less than 64 KiB of local memory\n", tu_device_name(d));
            continue;
        }
        for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
            clt_kernel *k;
            tu_assert_ok(clt_kernel_from_text(tu_device(d), "test/gemm_finish.cl", kernel_text, "finish_one",
                                              cases[i].options, &k),
                         cases[i].what);
            /* All boxes of a tile that crosses the right and lower edges, and one inside. */
            finish_one(d, &cases[i], k, 0, 0, 1, cases[i].first);
            for (uint32_t u = 0; u < BOXES && !tu_tiny(); u++)
                finish_one(d, &cases[i], k, 1, 1, u / 4, u % 4);
        }
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(boxes_are_finished_in_place)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
