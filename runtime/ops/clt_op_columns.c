/* Sums down columns: bias gradients, and the last launch of norm backward (clkernels/norm). */
#include <string.h>

#include "runtime/ops/clt_op_norm_internal.h"
#include "runtime/ops/clt_ops_state.h"
#include "runtime/ops/ref/clt_ref.h"

enum { SPAN = 1024, SIDE = 16 };

/* Results whose block sums wait for one launch that adds them all up. They belong to the same rows and lie in
 * one buffer, as gradients do. */
enum { MOST_LATER = 6 };
struct clt_later {
    clt_column_parts parts;
    clt_column_result result[MOST_LATER];
    int n;
    bool on;
};

static bool wide_columns(const clt_column_sum_params *p) {
    return p->x.ref.off % 8 == 0 && p->x.ld % 8 == 0 && p->cols % 8 == 0;
}

static const char *columns_options(clt_dtype type, char buf[CLT_NORM_OPTIONS]) {
    snprintf(buf, CLT_NORM_OPTIONS, " -DPART=3 -DX_TYPE=%d", (int)type);
    return buf;
}

static const char *finish_file(const clt_variant *v) {
    return *v->uses ? v->uses : v->file;
}

static clt_status finish_kernel(clt_ops *ops, const char *file, const char *name, clt_kernel **k) {
    char options[CLT_NORM_OPTIONS];
    return clt_kernel_get(clt_ops_device(ops), file, name, columns_options(CLT_F32, options), k);
}

bool clt_columns_build(clt_ops *ops, const clt_variant *v) {
    char options[CLT_NORM_OPTIONS];
    const char *wide[] = {"columns_finish_wide", "columns_finish_later"};
    columns_options(CLT_F32, options);
    if (!clt_norm_is_wide(v)) return clt_norm_builds(ops, finish_file(v), "columns_finish", options);
    return clt_norm_builds(ops, finish_file(v), wide[0], options) &&
           clt_norm_builds(ops, finish_file(v), wide[1], options);
}

/* Work-groups of 32 columns and SIDE samples, results side by side. */
static clt_status launch_wide(clt_kernel *k, int64_t cols, int n, const clt_arg *args, size_t count) {
    return clt_launch(k, 2, (size_t[]){CLT_ROUND_UP((size_t)cols, 32), (size_t)n * SIDE},
                      (size_t[]){32, SIDE}, args, (int)count);
}

/* Up to three results in one launch. */
static clt_status finish_wide(clt_kernel *k, const clt_column_parts *p, const clt_column_result *r, int n) {
    const clt_column_result *second = &r[n > 1], *third = &r[n - 1];
    clt_arg args[] = {CLT_BUF(p->part),     CLT_U64(r->at),     CLT_REF(r->out),       CLT_U64(second->at),
                      CLT_REF(second->out), CLT_U64(third->at), CLT_REF(third->out),   CLT_U64(p->samples),
                      CLT_U64(p->blocks),   CLT_U64(p->cols),   CLT_I32(p->accumulate)};
    return launch_wide(k, p->cols, n, args, CLT_COUNT_OF(args));
}

/* --- sums that are finished later --- */

static uint64_t sums_of(const clt_column_parts *p) {
    return (uint64_t)(p->samples * p->blocks * p->cols);
}

static clt_status launch_later(clt_ops *ops, const struct clt_later *l) {
    clt_kernel *k;
    const int n = l->n;
    CLT_TRY(finish_kernel(ops, "norm/norm_wide.cl", "columns_finish_later", &k));
    clt_arg args[MOST_LATER + 7] = {CLT_BUF(l->parts.part), CLT_U64(sums_of(&l->parts)),
                                    CLT_BUF(l->result[0].out.buf)};
    for (int i = 0; i < MOST_LATER; i++) args[3 + i] = CLT_U64(l->result[CLT_MIN(i, n - 1)].out.off);
    clt_arg *rest = args + 3 + MOST_LATER;
    rest[0] = CLT_U64(l->parts.samples), rest[1] = CLT_U64(l->parts.blocks);
    rest[2] = CLT_U64(l->parts.cols), rest[3] = CLT_I32(l->parts.accumulate);
    return launch_wide(k, l->parts.cols, n, args, CLT_COUNT_OF(args));
}

static clt_status finish_later(clt_ops *ops) {
    const struct clt_later now = *ops->later;
    ops->later->n = 0; /* even if the launch fails */
    return now.n ? launch_later(ops, &now) : CLT_OK;
}

/* As many results as one launch can have, of more samples than it adds at a time; the last group has few
 * columns. */
clt_status clt_columns_check_later(clt_ops *ops) {
    enum { SAMPLES = SIDE + 1, BLOCKS = 3, COLS = 40, SUMS = SAMPLES * BLOCKS * COLS };
    clt_check c = {.ops = ops};
    float *part = clt_check_random(&c, (size_t)MOST_LATER * SUMS, 11),
          *out = clt_check_random(&c, (size_t)MOST_LATER * COLS, 12);
    clt_ref to = clt_check_upload(&c, out, (size_t)MOST_LATER * COLS);
    struct clt_later l = {.n = MOST_LATER,
                          .parts = {.samples = SAMPLES, .blocks = BLOCKS, .cols = COLS, .accumulate = true}};
    if (c.st == CLT_OK) c.st = clt_ops_scratch(ops, 0, 4 * MOST_LATER * SUMS, &l.parts.part);
    if (c.st == CLT_OK) c.st = clt_buffer_write(l.parts.part, 0, part, 4 * MOST_LATER * SUMS);
    for (int i = 0; i < MOST_LATER; i++) l.result[i].out = clt_ref_at(to, (uint64_t)i * COLS);
    if (c.st == CLT_OK) c.st = launch_later(ops, &l);
    for (int i = 0; i < MOST_LATER * COLS; i++)
        for (int s = 0; s < SAMPLES; s++) {
            const float *p = part + i / COLS * SUMS + s * BLOCKS * COLS + i % COLS;
            float sum = 0.0f;
            for (int b = 0; b < BLOCKS; b++) sum = sum + p[b * COLS];
            out[i] = out[i] + sum;
        }
    clt_check_compare(&c, "sums that end later", to, out, (size_t)MOST_LATER * COLS);
    return clt_check_end(&c);
}

/* One launch has all its results in one buffer, and adds to each once. */
static bool may_follow(clt_ref out, clt_ref before) {
    return out.buf == before.buf && out.off != before.off;
}

/* Space after the sums that wait, if these can join them. */
static clt_status room_later(clt_ops *ops, clt_column_parts *p, clt_column_result *r, int n) {
    struct clt_later *l = ops->later;
    const clt_column_parts *have = &l->parts;
    bool fits = l->n + n <= MOST_LATER && have->samples == p->samples && have->blocks == p->blocks &&
                have->cols == p->cols && have->accumulate == p->accumulate;
    for (int i = 0; i < l->n * n; i++) fits = fits && may_follow(r[i % n].out, l->result[i / n].out);
    if (!fits) CLT_TRY(finish_later(ops));
    CLT_TRY(clt_ops_scratch(ops, CLT_SCRATCH_LATER, 4 * MOST_LATER * sums_of(p), &p->part));
    l->parts = *p;
    for (int i = 0; i < n; i++) r[i].at = (uint64_t)(l->n + i) * sums_of(p);
    return CLT_OK;
}

bool clt_columns_later(const clt_ops *ops) {
    return ops->later && ops->later->on;
}

static bool ends_later(const clt_variant *v, const clt_column_parts *p, const clt_column_result *r, int n) {
    if (!p->later || !clt_norm_is_wide(v)) return false;
    for (int i = 1; i < n; i++)
        if (r[i].out.buf != r[0].out.buf) return false;
    return true;
}

void clt_op_sums_later(clt_ops *ops) {
    if (!ops->later) ops->later = clt_calloc(1, sizeof *ops->later);
    ops->later->on = true;
}

uint64_t clt_op_sums_workspace(clt_device_type type, int64_t rows, int64_t cols, int64_t rows_per_sample) {
    const int64_t blocks = rows / rows_per_sample * CLT_CEIL_DIV(rows_per_sample, CLT_NORM_BLOCK);
    return type == CLT_DEVICE_CPU ? 0 : 4 * MOST_LATER * (uint64_t)(blocks * cols);
}

clt_status clt_op_sums_now(clt_ops *ops) {
    if (!ops->later) return CLT_OK;
    ops->later->on = false;
    return finish_later(ops);
}

/* --- either way --- */

clt_status clt_columns_room(clt_ops *ops, const clt_variant *v, clt_column_parts *p, clt_column_result *r,
                            int n) {
    if (ends_later(v, p, r, n)) return room_later(ops, p, r, n);
    for (int i = 0; i < n; i++) r[i].at = (uint64_t)i * sums_of(p);
    return clt_ops_scratch(ops, 0, 4 * (uint64_t)n * sums_of(p), &p->part);
}

clt_status clt_columns_finish(clt_ops *ops, const clt_variant *v, const clt_column_parts *p,
                              const clt_column_result *r, int n) {
    clt_kernel *k;
    if (n == 0) return CLT_OK;
    if (ends_later(v, p, r, n)) {
        memcpy(ops->later->result + ops->later->n, r, (size_t)n * sizeof *r);
        ops->later->n += n;
        return CLT_OK;
    }
    const bool wide = clt_norm_is_wide(v);
    CLT_TRY(finish_kernel(ops, finish_file(v), wide ? "columns_finish_wide" : "columns_finish", &k));
    if (wide) return finish_wide(k, p, r, n);
    size_t local = clt_norm_group(v), width = clt_norm_is_rows(v) ? 16 : local;
    size_t global = CLT_CEIL_DIV((size_t)p->cols, width) * local;
    for (int i = 0; i < n; i++) {
        clt_arg args[] = {CLT_BUF(p->part),   CLT_U64(r[i].at), CLT_REF(r[i].out),     CLT_U64(p->samples),
                          CLT_U64(p->blocks), CLT_U64(p->cols), CLT_I32(p->accumulate)};
        CLT_TRY(clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args)));
    }
    return CLT_OK;
}

/* --- the operation of its own --- */

static clt_status column_blocks(clt_ops *ops, const clt_variant *v, const clt_column_sum_params *p,
                                const clt_column_parts *parts, uint64_t at) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "columns_blocks", v->options, &k));
    size_t local[] = {clt_norm_group(v), 1};
    size_t width = clt_norm_is_rows(v) ? SPAN : clt_norm_is_wide(v) ? 8 * local[0] : local[0];
    size_t global[] = {CLT_CEIL_DIV((size_t)p->cols, width) * local[0],
                       (size_t)(parts->samples * parts->blocks)};
    clt_arg args[] = {CLT_REF(p->x.ref),           CLT_BUF(parts->part),   CLT_U64(at),      CLT_U64(p->cols),
                      CLT_U64(p->rows_per_sample), CLT_U64(parts->blocks), CLT_U64(p->x.ld), CLT_U64(SPAN)};
    return clt_launch_rows(k, global, local, args, CLT_COUNT_OF(args));
}

static clt_status run_column_sum(clt_ops *ops, const clt_variant *v, const clt_column_sum_params *p) {
    clt_column_parts parts = {.samples = p->rows / p->rows_per_sample,
                              .blocks = CLT_CEIL_DIV(p->rows_per_sample, CLT_NORM_BLOCK),
                              .cols = p->cols,
                              .accumulate = p->accumulate};
    clt_column_result r = {.out = p->out.ref};
    CLT_TRY(clt_columns_room(ops, v, &parts, &r, 1));
    if (p->rows > 0) CLT_TRY(column_blocks(ops, v, p, &parts, r.at));
    return clt_columns_finish(ops, v, &parts, &r, 1);
}

static clt_status check_column_sum(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dtype type = *(const clt_dtype *)ctx;
    if (!clt_norm_builds(ops, v->file, "columns_blocks", v->options)) return clt_norm_does_not_build(ops, v);
    enum { ROWS = 140 };
    const int64_t cols = clt_norm_is_wide(v) ? 200 : 170;
    const size_t n = (size_t)(ROWS * cols);
    clt_check c = {.ops = ops, .aligned = clt_norm_is_wide(v)};
    float *x = clt_check_random(&c, n, 8), *out = clt_check_random(&c, (size_t)cols, 9);
    clt_column_sum_params p = {.rows = ROWS,
                               .cols = cols,
                               .rows_per_sample = ROWS / 2,
                               .x = clt_tensor_of(clt_check_upload_as(&c, type, x, n), cols, type),
                               .out = clt_tensor_vector(clt_check_upload(&c, out, (size_t)cols), CLT_F32),
                               .accumulate = true};
    if (c.st == CLT_OK) c.st = run_column_sum(ops, v, &p);
    clt_ref_column_sum(p.rows, p.cols, p.rows_per_sample, x, cols, true, out);
    clt_check_compare(&c, "column sum", p.out.ref, out, (size_t)cols);
    return clt_check_end(&c);
}

clt_status clt_op_column_sum(clt_ops *ops, const clt_column_sum_params *p) {
    CLT_TRY(clt_norm_check_samples("column sum", p->rows, p->cols, p->rows_per_sample));
    const clt_tensor_named x[] = {{"x", p->x}}, out[] = {{"out", p->out}};
    CLT_TRY(clt_tensor_check_types("column sum", CLT_DTYPE_PLAIN, x, 1));
    CLT_TRY(clt_tensor_check_types("column sum", clt_dtype_bit(CLT_F32), out, 1));
    const clt_variant *v;
    char options[CLT_NORM_OPTIONS];
    const clt_variant_question q = {.op = "norm",
                                    .options = columns_options(p->x.type, options),
                                    .takes = clt_norm_takes(wide_columns(p), false),
                                    .check = check_column_sum,
                                    .call = &p->x.type};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return run_column_sum(ops, v, p);
}
