/* Products of few rows with the norm before them: the rows of linear.vt. */
#include <string.h>

#include "runtime/ops/clt_op_linear_internal.h"

/* Flags of the kernel. */
enum { HAS_BIAS = 1, HAS_GATE_BIAS = 2, HAS_RESIDUAL = 4, HAS_NORM_W = 8, HAS_NORM_B = 16 };
enum { COLUMNS = 8192 /* of all rows of a launch together that local memory holds */ };

static uint32_t flags_of(const clt_linear_params *p) {
    return (clt_tensor_present(p->bias) ? HAS_BIAS : 0) |
           (clt_tensor_present(p->gate_bias) ? HAS_GATE_BIAS : 0) |
           (clt_tensor_present(p->residual) ? HAS_RESIDUAL : 0) |
           (clt_tensor_present(p->norm_w) ? HAS_NORM_W : 0) |
           (clt_tensor_present(p->norm_b) ? HAS_NORM_B : 0);
}

/* A row's program for a call, and its launch. */
typedef struct {
    char options[512];
    int64_t outputs; /* that a work-group has at a time */
} linear_plan;

/* Body rows: `together` rows of x are kept in local memory, as many columns as fit. */
static void plan_rows(const clt_variant *v, const clt_linear_params *p, int64_t rows, linear_plan *plan) {
    const int together = rows > 2 ? (int)clt_variant_param(v, "ROWS", 4) : (int)rows;
    const int chunk = (int)CLT_MIN(COLUMNS / together, CLT_ROUND_UP(p->k, (int64_t)256));
    snprintf(plan->options, sizeof plan->options, "%s -DTOGETHER=%d -DCHUNK=%d", v->options, together, chunk);
    plan->outputs = clt_variant_param(v, "ITEMS", 128) / 32 * (clt_tensor_present(p->gate) ? 1 : 2);
}

/* Body mma: two tiles of outputs where every compute unit then still has some. */
static void plan_mma(clt_ops *ops, const clt_variant *v, const clt_linear_params *p, linear_plan *plan) {
    enum { TILE = 16 };
    const int64_t units = clt_device_get_facts(clt_ops_device(ops))->compute_units;
    const int tiles = !clt_tensor_present(p->gate) && p->n >= 4 * TILE * units ? 2 : 1;
    snprintf(plan->options, sizeof plan->options, "%s -DTILES=%d", v->options, tiles);
    plan->outputs = (int64_t)tiles * TILE;
}

/* `rows` rows from row `first` on. */
static clt_status run_part(clt_ops *ops, const clt_variant *v, const clt_linear_params *p, int64_t first,
                           int64_t rows) {
    clt_device *dev = clt_ops_device(ops);
    const clt_ref x = clt_tensor_at(p->x, first, 0).ref, y = clt_tensor_at(p->y, first, 0).ref,
                  residual = clt_tensor_at(p->residual, first, 0).ref;
    linear_plan plan;
    clt_kernel *kernel;
    if (strcmp(v->body, "mma") == 0)
        plan_mma(ops, v, p, &plan);
    else
        plan_rows(v, p, rows, &plan);
    const size_t n = strlen(plan.options);
    snprintf(plan.options + n, sizeof plan.options - n, " -DNORM=%d -DGATED=%d -DACT=%d", (int)p->norm,
             clt_tensor_present(p->gate), (int)p->act);
    CLT_TRY(clt_kernel_get(dev, v->file, "linear_rows", plan.options, &kernel));
    const clt_arg args[] = {CLT_U32(rows),        CLT_U32(p->n),           CLT_U32(p->k),
                            CLT_U32(flags_of(p)), CLT_F32(p->eps),         CLT_REF(x),
                            CLT_U32(p->x.ld),     CLT_REF(p->norm_w.ref),  CLT_REF(p->norm_b.ref),
                            CLT_REF(p->w.ref),    CLT_U32(p->w.ld),        CLT_REF(p->gate.ref),
                            CLT_U32(p->gate.ld),  CLT_REF(p->bias.ref),    CLT_REF(p->gate_bias.ref),
                            CLT_REF(residual),    CLT_U32(p->residual.ld), CLT_REF(y),
                            CLT_U32(p->y.ld)};
    const int64_t items = clt_variant_param(v, "ITEMS", 128),
                  units = clt_device_get_facts(dev)->compute_units;
    const int64_t most = CLT_MAX(units, 1) * (int64_t)clt_variant_param(v, "GROUPS", 8);
    const size_t groups = (size_t)CLT_MIN(CLT_CEIL_DIV(p->n, plan.outputs), most);
    return clt_launch(kernel, 1, (size_t[]){groups * (size_t)items}, (size_t[]){(size_t)items}, args,
                      CLT_COUNT_OF(args));
}

clt_status clt_linear_run(clt_ops *ops, const clt_variant *v, const clt_linear_params *p) {
    const int64_t most = clt_variant_param(v, "ROWS", 4);
    for (int64_t first = 0; first < p->rows; first += most)
        CLT_TRY(run_part(ops, v, p, first, CLT_MIN(p->rows - first, most)));
    return CLT_OK;
}

/* --- the call --- */

/* Whether all rows of a matrix start at multiples of 16 bytes. */
static bool is_aligned(const clt_tensor *t) {
    const uint64_t align = 16 / clt_dtype_bytes(t->type);
    return !clt_tensor_present(*t) || (t->ref.off % align == 0 && (uint64_t)t->ld % align == 0);
}

static bool takes(const clt_variant *v, const void *call) {
    const clt_linear_params *p = call;
    return p->rows >= clt_variant_param(v, "MIN_ROWS", 1) && p->rows <= CLT_LINEAR_ROWS &&
           p->k % clt_variant_param(v, "K", 8) == 0 &&
           clt_dtype_in(p->w.type, (uint32_t)clt_variant_param(v, "TYPES", 7)) && is_aligned(&p->x) &&
           is_aligned(&p->w) && is_aligned(&p->gate) && is_aligned(&p->norm_w) && is_aligned(&p->norm_b);
}

static clt_status choose(clt_ops *ops, const clt_linear_params *p, const clt_variant **out) {
    char type[24] = "";
    if (p->w.type) snprintf(type, sizeof type, " -DTYPE=%d", (int)p->w.type);
    const clt_variant_question q = {
        .op = "linear", .options = type, .takes = takes, .check = clt_linear_check, .call = p};
    return clt_variant_pick_optional(ops, &q, out);
}

clt_status clt_op_linear_takes(clt_ops *ops, const clt_linear_params *p, bool *takes) {
    const clt_variant *v;
    CLT_TRY(choose(ops, p, &v));
    *takes = v != NULL;
    return CLT_OK;
}

static clt_status check_call(const clt_linear_params *p) {
    const clt_tensor_named weights[] = {{"w", p->w}, {"gate", p->gate}},
                           wide[] = {{"x", p->x},
                                     {"y", p->y},
                                     {"bias", p->bias},
                                     {"gate_bias", p->gate_bias},
                                     {"residual", p->residual},
                                     {"norm_w", p->norm_w},
                                     {"norm_b", p->norm_b}};
    const struct {
        const char *name;
        const clt_tensor *t;
        int64_t rows, cols;
        bool required;
    } part[] = {{"x", &p->x, p->rows, p->k, true},
                {"y", &p->y, p->rows, p->n, true},
                {"w", &p->w, p->n, p->k, true},
                {"gate", &p->gate, p->n, p->k, false},
                {"bias", &p->bias, 1, p->n, false},
                {"gate_bias", &p->gate_bias, 1, p->n, false},
                {"norm_w", &p->norm_w, 1, p->k, false},
                {"norm_b", &p->norm_b, 1, p->k, false},
                {"residual", &p->residual, p->rows, p->n, false}};
    CLT_TRY(clt_tensor_check_one_type("linear", CLT_DTYPE_PLAIN, weights, CLT_COUNT_OF(weights)));
    CLT_TRY(clt_tensor_check_types("linear", clt_dtype_bit(CLT_F32), wide, CLT_COUNT_OF(wide)));
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++)
        if (part[i].required || clt_tensor_present(*part[i].t))
            CLT_TRY(clt_tensor_check_fits("linear", part[i].name, part[i].t, part[i].rows, part[i].cols));
    return CLT_OK;
}

clt_status clt_op_linear(clt_ops *ops, const clt_linear_params *p) {
    const clt_variant *v;
    CLT_TRY(check_call(p));
    CLT_TRY(choose(ops, p, &v));
    if (!v)
        return clt_error(CLT_FAIL, "linear: no kernel of this device takes %lld x %lld x %lld",
                         (long long)p->rows, (long long)p->n, (long long)p->k);
    return clt_linear_run(ops, v, p);
}
