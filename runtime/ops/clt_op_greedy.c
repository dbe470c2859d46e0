/* The likeliest token of each row of logits: the rows of greedy.vt. */
#include "runtime/ops/clt_op_greedy.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/ref/clt_ref.h"

enum { SLOT_PARTS = 0, CHOICE_BYTES = 8 };

typedef struct {
    int64_t rows, cols;
    clt_tensor x;
    clt_ref token, position;
} params;

static clt_status launch(clt_ops *ops, const clt_variant *v, const params *p) {
    clt_device *dev = clt_ops_device(ops);
    const size_t items = (size_t)clt_variant_param(v, "ITEMS", 1);
    const int64_t each = clt_variant_param(v, "EACH", 4096), groups = CLT_CEIL_DIV(p->cols, each);
    clt_kernel *part, *join;
    clt_buffer *parts;
    CLT_TRY(clt_kernel_get(dev, v->file, "greedy_part", v->options, &part));
    CLT_TRY(clt_kernel_get(dev, v->file, "greedy_join", v->options, &join));
    CLT_TRY(clt_ops_scratch(ops, SLOT_PARTS, (uint64_t)(p->rows * groups) * CHOICE_BYTES, &parts));
    const clt_arg first[] = {CLT_U32(p->cols), CLT_U32(each), CLT_REF(p->x.ref), CLT_U32(p->x.ld),
                             CLT_BUF(parts)},
                  then[] = {CLT_U32(groups), CLT_BUF(parts), CLT_REF(p->token), CLT_REF(p->position)};
    CLT_TRY(clt_launch(part, 2, (size_t[]){(size_t)groups * items, (size_t)p->rows}, (size_t[]){items, 1},
                       first, CLT_COUNT_OF(first)));
    return clt_launch(join, 1, (size_t[]){(size_t)p->rows * items}, (size_t[]){items}, then,
                      CLT_COUNT_OF(then));
}

/* Rows of several groups: the largest element in the last group, at two places in different groups, NaN and
 * -infinity first, and nothing but -infinity. Integers are compared as the floats of their bits. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    enum { ROWS = 4, COLS = 9001, LD = 9011 };
    const int32_t before[ROWS] = {0, 5, 7, 1};
    (void)ctx;
    clt_check c = {.ops = ops};
    float *x = clt_check_random(&c, ROWS * LD, 1), *token = clt_check_zeros(&c, ROWS),
          *position = clt_check_zeros(&c, ROWS);
    if (c.st == CLT_OK) {
        x[8999] = 2.0f;
        x[LD + 17] = x[LD + 8888] = 3.0f;
        x[2 * LD] = NAN;
        x[2 * LD + 1] = -INFINITY;
        for (int i = 0; i < COLS; i++) x[3 * LD + i] = -INFINITY;
    }
    const params p = {.rows = ROWS,
                      .cols = COLS,
                      .x = clt_tensor_of(clt_check_upload(&c, x, ROWS * LD), LD, CLT_F32),
                      .token = clt_check_blank(&c, ROWS),
                      .position = clt_check_upload(&c, before, ROWS)};
    if (c.st == CLT_OK) c.st = launch(ops, v, &p);
    for (int r = 0; r < ROWS && c.st == CLT_OK; r++) {
        const int32_t want[] = {clt_ref_greedy(x + r * LD, COLS), before[r] + 1};
        memcpy(&token[r], &want[0], sizeof *want);
        memcpy(&position[r], &want[1], sizeof *want);
    }
    clt_check_compare(&c, "token", p.token, token, ROWS);
    clt_check_compare(&c, "position", p.position, position, ROWS);
    return clt_check_end(&c);
}

clt_status clt_op_greedy(clt_ops *ops, int64_t rows, int64_t cols, clt_tensor x, clt_ref token,
                         clt_ref position) {
    const clt_variant *v;
    CLT_TRY(clt_tensor_check_types("greedy", clt_dtype_bit(CLT_F32), &(clt_tensor_named){"x", x}, 1));
    CLT_TRY(clt_tensor_check_fits("greedy", "x", &x, rows, cols));
    CLT_TRY(clt_variant_pick(ops, "greedy", check, NULL, &v));
    return launch(ops, v, &(params){rows, cols, x, token, position});
}
