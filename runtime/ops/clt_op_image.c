/* Patches of images, and the tokens that are made of them: kernels of clkernels/image. */
#include "runtime/ops/clt_op_image.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* Work-items over (segments of a row, rows). */
static clt_status launch(clt_ops *ops, const clt_variant *v, const char *name, int64_t cols, int64_t rows,
                         const clt_arg *args, int n) {
    clt_kernel *k;
    if (rows == 0) return CLT_OK;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    const size_t wg = (size_t)clt_variant_param(v, "WG", 1), seg = (size_t)clt_variant_param(v, "SEG", 1);
    size_t global[] = {CLT_ROUND_UP(CLT_CEIL_DIV((size_t)cols, seg), wg), (size_t)rows}, local[] = {wg, 1};
    return clt_launch_rows(k, global, local, args, n);
}

static clt_status run_unfold(clt_ops *ops, const clt_variant *v, const clt_unfold_params *p) {
    const int64_t across = p->width / p->p, tokens = p->height / p->p * across + 1, cols = p->out.ld;
    clt_arg args[] = {CLT_REF(p->pixels), CLT_REF(p->out.ref), CLT_U64(tokens), CLT_U64(cols),
                      CLT_U64(p->height), CLT_U64(p->width),   CLT_U64(p->p),   CLT_U64(across)};
    return launch(ops, v, "unfold_patches", cols, p->images * tokens, args, CLT_COUNT_OF(args));
}

static clt_status run_place(clt_ops *ops, const clt_variant *v, const clt_place_tokens_params *p) {
    clt_arg args[] = {CLT_REF(p->x), CLT_REF(p->first), CLT_REF(p->position), CLT_U64(p->tokens),
                      CLT_U64(p->cols)};
    return launch(ops, v, "place_tokens", p->cols, p->images * p->tokens, args, CLT_COUNT_OF(args));
}

static clt_status run_mean(clt_ops *ops, const clt_variant *v, const clt_mean_tokens_params *p,
                           bool backward) {
    clt_arg args[] = {CLT_REF(backward ? p->y : p->x), CLT_REF(backward ? p->x : p->y), CLT_U64(p->tokens),
                      CLT_U64(p->cols), CLT_F32(1.0f / (float)(p->tokens - 1))};
    return launch(ops, v, backward ? "mean_tokens_backward" : "mean_tokens", p->cols,
                  p->images * (backward ? p->tokens : 1), args, CLT_COUNT_OF(args));
}

/* --- the check: two images of 11 x 8 pixels with 2 x 2 patches of 4 x 4, and tokens of 37 columns --- */

enum { IMAGES = 2, HEIGHT = 11, WIDTH = 8, P = 4, TOKENS = 5, PATCH = 3 * P * P, LD = PATCH + 5, COLS = 37 };

static void check_unfold(clt_check *c, const clt_variant *v, clt_dtype type) {
    enum { PIXELS = IMAGES * 3 * HEIGHT * WIDTH, N = IMAGES * TOKENS * LD };
    const float *x = clt_check_random(c, PIXELS, 1);
    float *want = clt_check_zeros(c, N), *blank = clt_check_zeros(c, N);
    const clt_unfold_params p = {.images = IMAGES,
                                 .height = HEIGHT,
                                 .width = WIDTH,
                                 .p = P,
                                 .pixels = clt_check_upload(c, x, PIXELS),
                                 .out = clt_tensor_of(clt_check_upload_as(c, type, blank, N), LD, type)};
    if (c->st == CLT_OK) c->st = run_unfold(c->ops, v, &p);
    clt_ref_unfold_patches(IMAGES, HEIGHT, WIDTH, P, LD, x, want);
    clt_check_compare_as(c, type, "patches", p.out.ref, want, N);
}

static void check_tokens(clt_check *c, const clt_variant *v) {
    enum { N = IMAGES * TOKENS * COLS };
    float *x = clt_check_random(c, N, 2), *mean = clt_check_zeros(c, IMAGES * COLS);
    const float *first = clt_check_random(c, COLS, 3), *position = clt_check_random(c, TOKENS * COLS, 4);
    const clt_place_tokens_params p = {.images = IMAGES,
                                       .tokens = TOKENS,
                                       .cols = COLS,
                                       .x = clt_check_upload(c, x, N),
                                       .first = clt_check_upload(c, first, COLS),
                                       .position = clt_check_upload(c, position, TOKENS * COLS)};
    const clt_mean_tokens_params m = {IMAGES, TOKENS, COLS, p.x, clt_check_blank(c, IMAGES * COLS)},
                                 d = {IMAGES, TOKENS, COLS, clt_check_blank(c, N), m.y};
    if (c->st == CLT_OK) c->st = run_place(c->ops, v, &p);
    if (c->st == CLT_OK) c->st = run_mean(c->ops, v, &m, false);
    if (c->st == CLT_OK) c->st = run_mean(c->ops, v, &d, true);
    clt_ref_place_tokens(IMAGES, TOKENS, COLS, first, position, x);
    clt_check_compare(c, "tokens", p.x, x, N);
    clt_ref_mean_tokens(IMAGES, TOKENS, COLS, x, mean);
    clt_check_compare(c, "mean of tokens", m.y, mean, IMAGES * COLS);
    clt_ref_mean_tokens_backward(IMAGES, TOKENS, COLS, mean, x);
    clt_check_compare(c, "gradient of a mean", d.x, x, N);
}

static clt_status check_variant(clt_ops *ops, const clt_variant *v, void *ctx) {
    clt_check c = {.ops = ops};
    check_unfold(&c, v, *(const clt_dtype *)ctx);
    check_tokens(&c, v);
    return clt_check_end(&c);
}

/* --- the operations --- */

static clt_status pick(clt_ops *ops, clt_dtype type, const clt_variant **v) {
    char options[16];
    const clt_variant_question q = {
        .op = "image", .options = clt_type_option(type, options), .check = check_variant, .call = &type};
    return clt_variant_pick_for(ops, &q, v);
}

static clt_status check_sizes(const char *op, int64_t images, int64_t a, int64_t b, int64_t c) {
    if (images >= 0 && a >= 1 && b >= 1 && c >= 1) return CLT_OK;
    return clt_error(CLT_FAIL, "%s: invalid shape: %lld images of %lld, %lld, %lld", op, (long long)images,
                     (long long)a, (long long)b, (long long)c);
}

clt_status clt_op_unfold_patches(clt_ops *ops, const clt_unfold_params *p) {
    const clt_tensor_named out = {"patches", p->out};
    const clt_variant *v;
    CLT_TRY(check_sizes("patches", p->images, p->height, p->width, p->p));
    if (p->p > p->height || p->p > p->width)
        return clt_error(CLT_FAIL, "patches: a patch of %lld pixels exceeds an image of %lld x %lld",
                         (long long)p->p, (long long)p->height, (long long)p->width);
    CLT_TRY(clt_tensor_check_types("patches", CLT_DTYPE_PLAIN, &out, 1));
    if (p->out.ld < 3 * p->p * p->p)
        return clt_error(CLT_FAIL, "patches: rows of %lld elements are too short for %lld",
                         (long long)p->out.ld, (long long)(3 * p->p * p->p));
    CLT_TRY(pick(ops, p->out.type, &v));
    return run_unfold(ops, v, p);
}

clt_status clt_op_place_tokens(clt_ops *ops, const clt_place_tokens_params *p) {
    const clt_variant *v;
    CLT_TRY(check_sizes("tokens", p->images, p->tokens, p->cols, 1));
    CLT_TRY(pick(ops, CLT_F32, &v));
    return run_place(ops, v, p);
}

static clt_status mean_tokens(clt_ops *ops, const clt_mean_tokens_params *p, bool backward) {
    const clt_variant *v;
    CLT_TRY(check_sizes("mean of tokens", p->images, p->tokens - 1, p->cols, 1));
    CLT_TRY(pick(ops, CLT_F32, &v));
    return run_mean(ops, v, p, backward);
}

clt_status clt_op_mean_tokens(clt_ops *ops, const clt_mean_tokens_params *p) {
    return mean_tokens(ops, p, false);
}

clt_status clt_op_mean_tokens_backward(clt_ops *ops, const clt_mean_tokens_params *p) {
    return mean_tokens(ops, p, true);
}
