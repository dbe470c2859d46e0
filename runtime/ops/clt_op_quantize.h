/* clt_op_quantize: matrices of 8-bit numbers in blocks along a product's contraction, and making them from
 * fp32, bf16 and fp16 (clkernels/quantize). docs/numerics.md, "Eight-bit blocks", defines every bit. */
#ifndef CLT_OP_QUANTIZE_H
#define CLT_OP_QUANTIZE_H

#include "runtime/ops/clt_activation.h"
#include "runtime/ops/clt_ops_context.h"

/* A matrix [rows, k] whose contraction k is the fast dimension, in blocks of `block` consecutive elements of
 * a row: element (r, i) has the value q[r * ld + i] * scale[i / block * ld_scale + r / tile]. k is a multiple
 * of `block`: a tensor whose contraction is shorter is padded with q = 0.
 *
 * tile is 1, one scale per row and block, or `block`, one scale per block x block tile; the last tile may
 * have fewer rows. Scales of consecutive rows are contiguous, so that a kernel's tile of rows reads them
 * together.
 *
 * q.off and ld are multiples of 16 bytes, so that kernels can use loads of 16 bytes everywhere. */
typedef struct {
    clt_ref q;        /* int8, off counts bytes; buf NULL: the matrix is absent */
    int64_t ld;       /* from a row of q to the next, in bytes; at least k */
    clt_ref scale;    /* fp32 [k / block, ceil(rows / tile)]; off counts floats */
    int64_t ld_scale; /* from a block's scales to the next block's, in floats */
    int32_t block;    /* 64 or 128 */
    int32_t tile;     /* 1 or block */
} clt_blocks8;

static inline bool clt_blocks8_present(const clt_blocks8 *b) {
    return b->q.buf != NULL;
}
/* CLT_FAIL, with a message that begins with `op` and names the matrix, unless b is present, obeys the rules
 * above, and q [rows, k] and its scales lie inside their buffers. */
clt_status clt_blocks8_check(const char *op, const char *name, const clt_blocks8 *b, int64_t rows, int64_t k);

/* Quantises x [rows, cols], or what an activation makes of it, in one pass, in one or both of two
 * orientations:
 *   along   [rows, k], k = cols rounded up to a multiple of the block: the contraction goes along x's rows
 *   across  [cols, k]: the transpose, whose contraction goes down x's columns. Blocks start anew at each
 *           sample of rows_per_sample rows: with R = rows_per_sample rounded up to a multiple of the block,
 *           k = rows / rows_per_sample * R, and row t of sample s is at s * R + t
 * Padding is written: q = 0, and blocks without an element do not exist. At least one of the two is present;
 * both have the same block and tile. With tile > 1 they have the same q and scales, transposed, and
 * rows_per_sample must be rows.
 *
 * What is cut into blocks is y, rounded to x's type: x itself, act(x), or x * grad_act'(grad_pre). Its bits
 * are those of clt_op_activation_forward and clt_op_activation_backward with numerics exact, in every
 * numerics mode. So y is the activation of x as it is stored: a fused epilogue, which applies it before the
 * product is rounded to 16 bits, gives other bits.
 *
 * CLT_FAIL: a size outside 1 ... INT_MAX, rows_per_sample does not divide rows, a tensor exceeds its buffer,
 * x has another type than fp32, bf16 or fp16, grad_pre or y another type than x, a rule of clt_blocks8 is
 * broken, an activation is unknown, act and grad_act are both given, grad_pre is given without grad_act or
 * the reverse, y overlaps grad_pre, or x without being x. */
typedef struct {
    int64_t rows, cols;
    int64_t rows_per_sample; /* used with `across` only */
    clt_tensor x;
    clt_blocks8 along, across; /* outputs, each optional */
    clt_activation act;        /* y = act(x); CLT_ACT_NONE: y = x */
    clt_activation grad_act; /* y = x * grad_act'(grad_pre); CLT_ACT_NONE: no factor. Not together with act */
    clt_tensor grad_pre;     /* [rows, cols], x's type; required with grad_act */
    clt_tensor y;            /* optional output [rows, cols], x's type; may be x: same place and ld */
} clt_quantize_params;
clt_status clt_op_quantize(clt_ops *ops, const clt_quantize_params *p);

/* k of `along` for `cols` elements, and k of `across` for `rows` rows. */
static inline int64_t clt_blocks8_along_k(int64_t cols, int32_t block) {
    return CLT_ROUND_UP(cols, (int64_t)block);
}
static inline int64_t clt_blocks8_across_k(int64_t rows, int64_t rows_per_sample, int32_t block) {
    return rows / rows_per_sample * CLT_ROUND_UP(rows_per_sample, (int64_t)block);
}

#endif
