/* clt_op_image: patches of images, and the tokens that are made of them (clkernels/image, whose README.md has
 * the formulas). An image has n patches, numbered row by row, and T = n + 1 tokens, of which token 0 is the
 * class token. Row b * T + t of a tensor is token t of image b. Rows have no gaps, but for those of patches.
 * A size below 1 is CLT_FAIL; images 0 does nothing. */
#ifndef CLT_OP_IMAGE_H
#define CLT_OP_IMAGE_H

#include "runtime/ops/clt_ops_context.h"

/* Whole rows of out's ld are written. out = the pixels of each patch, colour by colour and row by row,
 * rounded to out's type; +0 in the rows of class tokens. out times the weight of a convolution of p x p with
 * stride p is that convolution. Pixels that fill no patch are not read. CLT_FAIL: p exceeds a side of the
 * image. */
typedef struct {
    int64_t images, height, width, p;
    clt_ref pixels; /* fp32 [images, 3, height, width] */
    clt_tensor out; /* [images * T, 3 p^2], +0 up to ld */
} clt_unfold_params;
clt_status clt_op_unfold_patches(clt_ops *ops, const clt_unfold_params *p);

/* x[b, t] = x[b, t] + position[t], where the class token's x is `first`; fp32, in place. Its gradients are
 * clt_op_embedding_backward's of positions; that of `first` is row 0 of it. */
typedef struct {
    int64_t images, tokens, cols;
    clt_ref x;        /* [images * T, cols] */
    clt_ref first;    /* [cols] */
    clt_ref position; /* [T, cols] */
} clt_place_tokens_params;
clt_status clt_op_place_tokens(clt_ops *ops, const clt_place_tokens_params *p);

/* y[b] = the mean of x[b, t] over t >= 1, fp32; T at least 2. Backward: dx[b, t] = dy[b] / n for t >= 1, +0
 * for the class token. */
typedef struct {
    int64_t images, tokens, cols;
    clt_ref x, y; /* [images * T, cols], [images, cols]; or their gradients */
} clt_mean_tokens_params;
clt_status clt_op_mean_tokens(clt_ops *ops, const clt_mean_tokens_params *p);
clt_status clt_op_mean_tokens_backward(clt_ops *ops, const clt_mean_tokens_params *p);

#endif
