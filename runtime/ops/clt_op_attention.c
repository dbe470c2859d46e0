/* Attention: checks a call, picks a row, and the bodies for work-groups and for CPUs. */
#include <string.h>

#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/clt_op_attention_internal.h"

enum { BLOCK = 64, ALL_MASKS = 1 << CLT_MASK_CAUSAL | 1 << CLT_MASK_NONE };

typedef clt_attention_params params;
typedef clt_attention_grad_params grad_params;
typedef clt_attention_args arg_list;

/* --- arguments --- */

void clt_attention_add(arg_list *l, clt_arg a) {
    l->a[l->n++] = a;
}

void clt_attention_add_ref(arg_list *l, clt_ref r) {
    clt_attention_add(l, CLT_BUF(r.buf));
    clt_attention_add(l, CLT_U64(r.off));
}

void clt_attention_add_tensor(arg_list *l, clt_tensor t) {
    clt_attention_add_ref(l, t.ref);
    clt_attention_add(l, CLT_U32(t.ld));
}

arg_list clt_attention_common_args(const params *p) {
    arg_list l = {.n = 0};
    clt_attention_add_tensor(&l, p->q);
    clt_attention_add_tensor(&l, p->k);
    clt_attention_add_tensor(&l, p->v);
    clt_attention_add_ref(&l, p->slopes);
    clt_attention_add_ref(&l, p->seq_ids);
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(&l, CLT_F32(p->scale));
    clt_attention_add(&l, CLT_F32(p->softcap));
    clt_attention_add(&l, CLT_U32(p->window >= 0 ? CLT_MIN(p->window, p->seq) : 0));
    clt_dropout_constants c = clt_dropout_constants_of(p->dropout, p->seed);
    clt_attention_add(&l, CLT_U32(c.key[0]));
    clt_attention_add(&l, CLT_U32(c.key[1]));
    clt_attention_add(&l, CLT_U32(p->step));
    clt_attention_add(&l, CLT_U32(p->first_sample));
    clt_attention_add(&l, CLT_U32(p->layer * 8 + CLT_SITE_ATTENTION));
    clt_attention_add(&l, CLT_U32(c.threshold));
    clt_attention_add(&l, CLT_F32(c.scale));
    return l;
}

/* --- bodies: work-groups in local memory --- */

clt_status clt_attention_launch_tiles(clt_ops *ops, const clt_variant *v, const char *name, int64_t tiles,
                                      int64_t heads, int64_t batch, const arg_list *l) {
    size_t items = (size_t)clt_variant_param(v, "ITEMS", 4 * clt_variant_param(v, "ROWS", 16));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    return clt_launch(k, 3, (size_t[]){(size_t)tiles * items, (size_t)heads, (size_t)batch},
                      (size_t[]){items, 1, 1}, l->a, l->n);
}

static clt_status launch_tiles(clt_ops *ops, const clt_variant *v, const char *name, const params *p,
                               int64_t heads, const arg_list *l) {
    const int64_t rows = clt_variant_param(v, "ROWS", 16);
    return clt_attention_launch_tiles(ops, v, name, CLT_CEIL_DIV(p->seq, rows), heads, p->batch, l);
}

static clt_status group_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    arg_list l = clt_attention_common_args(p);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add_ref(&l, p->lse);
    return launch_tiles(ops, v, "attention_forward", p, p->heads, &l);
}

clt_status clt_attention_delta(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer **out) {
    const params *p = &g->fwd;
    CLT_TRY(clt_ops_scratch(ops, 0, (uint64_t)(p->batch * p->heads * p->seq) * sizeof(float), out));
    arg_list l = {.n = 0};
    clt_attention_add_tensor(&l, g->dout);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add(&l, CLT_BUF(*out));
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_delta", v->options, &k));
    return clt_launch(k, 3, (size_t[]){CLT_ROUND_UP((size_t)p->seq, 64), (size_t)p->heads, (size_t)p->batch},
                      (size_t[]){64, 1, 1}, l.a, l.n);
}

arg_list clt_attention_gradient_args(const grad_params *g, clt_buffer *delta) {
    arg_list l = clt_attention_common_args(&g->fwd);
    clt_attention_add_ref(&l, g->fwd.lse);
    clt_attention_add(&l, CLT_BUF(delta));
    clt_attention_add_tensor(&l, g->dout);
    return l;
}

static clt_status group_backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const params *p = &g->fwd;
    clt_buffer *delta;
    CLT_TRY(clt_attention_delta(ops, v, g, &delta));
    arg_list l = clt_attention_gradient_args(g, delta), kv = l;
    clt_attention_add_tensor(&l, g->dq);
    CLT_TRY(launch_tiles(ops, v, "attention_backward_q", p, p->heads, &l));
    clt_attention_add_tensor(&kv, g->dk);
    clt_attention_add_tensor(&kv, g->dv);
    clt_attention_add(&kv, CLT_U32(g->accumulate_kv));
    return launch_tiles(ops, v, "attention_backward_kv", p, p->kv_heads, &kv);
}

/* --- bodies: one work item a group --- */

static clt_status launch_blocks(clt_ops *ops, const clt_variant *v, const char *name, const params *p,
                                int64_t heads, const arg_list *l) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    size_t blocks = CLT_CEIL_DIV((size_t)p->seq, BLOCK);
    return clt_launch(k, 3, (size_t[]){blocks, (size_t)heads, (size_t)p->batch}, (size_t[]){1, 1, 1}, l->a,
                      l->n);
}

static clt_status cpu_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    arg_list l = clt_attention_common_args(p);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add_ref(&l, p->lse);
    return launch_blocks(ops, v, "attention_forward", p, p->heads, &l);
}

static clt_status cpu_backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const params *p = &g->fwd;
    arg_list l = clt_attention_common_args(p);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add_ref(&l, p->lse);
    clt_attention_add_tensor(&l, g->dout);
    clt_attention_add_tensor(&l, g->dq);
    clt_attention_add_tensor(&l, g->dk);
    clt_attention_add_tensor(&l, g->dv);
    clt_attention_add(&l, CLT_U32(g->accumulate_kv));
    uint64_t half = p->q.type == CLT_F32 ? 0 : (uint64_t)(p->batch * p->seq * p->kv_heads * p->head_dim);
    clt_buffer *sums = NULL;
    if (half) CLT_TRY(clt_ops_scratch(ops, 0, 2 * half * sizeof(float), &sums));
    clt_attention_add(&l, CLT_BUF(sums));
    clt_attention_add(&l, CLT_U64(half));
    if (strstr(v->options, "-DSPLIT=1")) {
        CLT_TRY(launch_blocks(ops, v, "attention_backward_q", p, p->heads, &l));
        return launch_blocks(ops, v, "attention_backward_kv", p, p->kv_heads, &l);
    }
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_backward", v->options, &k));
    return clt_launch(k, 3, (size_t[]){(size_t)p->kv_heads, (size_t)p->batch, 1}, (size_t[]){1, 1, 1}, l.a,
                      l.n);
}

/* delta; every device can fall back to this body */
static uint64_t group_workspace(clt_device_type type, const params *p) {
    (void)type;
    return (uint64_t)(p->batch * p->heads * p->seq) * sizeof(float);
}

/* dk and dv of 16-bit tensors in fp32 */
static uint64_t cpu_workspace(clt_device_type type, const params *p) {
    if (type != CLT_DEVICE_CPU || p->q.type == CLT_F32) return 0;
    return (uint64_t)(2 * p->batch * p->seq * p->kv_heads * p->head_dim) * sizeof(float);
}

/* --- all bodies --- */

static const clt_attention_body group = {"group", group_forward, group_backward, NULL, NULL, group_workspace};
static const clt_attention_body cpu = {"cpu", cpu_forward, cpu_backward, NULL, NULL, cpu_workspace};
static const clt_attention_body *const bodies[] = {&group, &cpu, &clt_attention_wgmma, &clt_attention_kept};

static const clt_attention_body *body_of(const clt_variant *v) {
    for (size_t i = 0; i < CLT_COUNT_OF(bodies); i++)
        if (!strcmp(v->body, bodies[i]->name)) return bodies[i];
    return NULL;
}

static clt_status unknown_body(const clt_variant *v) {
    return clt_error(CLT_FAIL, "%s.vt: variant %s has the unknown body '%s'", v->op, v->id, v->body);
}

clt_status clt_attention_run_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    const clt_attention_body *body = body_of(v);
    return body ? body->forward(ops, v, p) : unknown_body(v);
}

clt_status clt_attention_run_backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const clt_attention_body *body = body_of(v);
    return body ? body->backward(ops, v, g) : unknown_body(v);
}

/* --- choosing --- */

static clt_status check_types(const params *p) {
    const clt_tensor_named all[] = {{"q", p->q}, {"k", p->k}, {"v", p->v}, {"o", p->o}};
    return clt_tensor_check_one_type("attention", CLT_DTYPE_PLAIN, all, CLT_COUNT_OF(all));
}

clt_status clt_attention_validate_gradients(const grad_params *g) {
    const clt_tensor_named all[] = {
        {"q", g->fwd.q}, {"dout", g->dout}, {"dq", g->dq}, {"dk", g->dk}, {"dv", g->dv}};
    return clt_tensor_check_one_type("attention backward", CLT_DTYPE_PLAIN, all, CLT_COUNT_OF(all));
}

clt_status clt_attention_validate(const params *p) {
    if (p->batch < 1 || p->seq < 1 || p->heads < 1 || p->kv_heads < 1 || p->head_dim < 1 ||
        p->heads % p->kv_heads != 0)
        return clt_error(
            CLT_FAIL,
            "attention: bad sizes: batch %lld, sequence %lld, heads %lld, kv heads %lld, head size %lld",
            (long long)p->batch, (long long)p->seq, (long long)p->heads, (long long)p->kv_heads,
            (long long)p->head_dim);
    if ((unsigned)p->mask > CLT_MASK_NONE)
        return clt_error(CLT_FAIL, "attention: unknown mask %d", (int)p->mask);
    if (p->seq > INT32_MAX / 2 || !(p->dropout >= 0.0f && p->dropout < 1.0f))
        return clt_error(CLT_FAIL, "attention: sequence %lld or dropout %g is out of range",
                         (long long)p->seq, (double)p->dropout);
    return check_types(p);
}

/* Whether a CPU body's backward pass takes two launches. One launch has a work item per key/value head of a
 * sample and computes 5 products per block; two launches have many more items and compute 7. So two are
 * faster where the heads leave cores idle. The batch does not count, because it may change during a run and
 * programs must not. */
static bool split_backward(const clt_ops *ops, const params *p) {
    int64_t cores = CLT_MAX((int64_t)clt_device_get_facts(clt_ops_device(ops))->compute_units, 1);
    return p->kv_heads * 7 < CLT_ROUND_UP(p->kv_heads, cores) * 5;
}

void clt_attention_options(const params *p, char out[CLT_ATTENTION_OPTIONS]) {
    snprintf(out, CLT_ATTENTION_OPTIONS,
             " -DHEAD_DIM=%lld -DTYPE=%d -DALIBI=%d -DSOFTCAP=%d -DWINDOW=%d -DSEQ_IDS=%d -DDROPOUT=%d%s",
             (long long)p->head_dim, (int)p->q.type, p->slopes.buf != NULL, p->softcap > 0.0f, p->window >= 0,
             p->seq_ids.buf != NULL, p->dropout > 0.0f, p->mask == CLT_MASK_CAUSAL ? "" : " -DCAUSAL=0");
}

void clt_attention_cpu_options(const clt_ops *ops, const params *p, char out[CLT_ATTENTION_OPTIONS]) {
    clt_attention_options(p, out);
    size_t n = strlen(out);
    snprintf(out + n, CLT_ATTENTION_OPTIONS - n, " -DSPLIT=%d", split_backward(ops, p));
}

static bool is_aligned(clt_tensor t, int64_t to) {
    return t.ld % to == 0 && (int64_t)t.ref.off % to == 0;
}

static bool are_aligned(const params *p, int64_t to) {
    return to <= 1 || (p->head_dim % to == 0 && is_aligned(p->q, to) && is_aligned(p->k, to) &&
                       is_aligned(p->v, to) && is_aligned(p->o, to));
}

static bool gradients_are_aligned(const grad_params *g, int64_t to) {
    return to <= 1 || (is_aligned(g->dout, to) && is_aligned(g->dq, to) && is_aligned(g->dk, to) &&
                       is_aligned(g->dv, to));
}

/* What a row's params say. */
static bool row_takes(const clt_variant *v, const params *p) {
    return are_aligned(p, clt_variant_param(v, "ALIGN", 1)) &&
           (clt_variant_param(v, "MASKS", ALL_MASKS) >> p->mask & 1) &&
           clt_dtype_in(p->q.type, (uint32_t)clt_variant_param(v, "TYPES", CLT_DTYPE_PLAIN)) &&
           p->head_dim >= clt_variant_param(v, "MIN_D", 1) &&
           p->head_dim <= clt_variant_param(v, "MAX_D", INT32_MAX);
}

bool clt_attention_takes_forward(const clt_variant *v, const params *p) {
    const clt_attention_body *body = body_of(v);
    return row_takes(v, p) && !(body && body->takes_forward && !body->takes_forward(v, p));
}

bool clt_attention_takes_backward(const clt_variant *v, const grad_params *g) {
    const clt_attention_body *body = body_of(v);
    return row_takes(v, &g->fwd) && gradients_are_aligned(g, clt_variant_param(v, "ALIGN", 1)) &&
           !(body && body->takes_backward && !body->takes_backward(v, g));
}

static bool takes_forward(const clt_variant *v, const void *call) {
    return clt_attention_takes_forward(v, call);
}

static bool takes_backward(const clt_variant *v, const void *call) {
    return clt_attention_takes_backward(v, call);
}

static void describe_forward(const void *call, char *out, size_t size) {
    clt_attention_shape(call, false, out, size);
}

static void describe_backward(const void *call, char *out, size_t size) {
    const grad_params *g = call;
    clt_attention_shape(&g->fwd, g->accumulate_kv, out, size);
}

clt_status clt_attention_pick(clt_ops *ops, const clt_variant_question *q, const params *p,
                              bool accumulate_kv, const clt_tune_kind *kind, const clt_variant **v) {
    char shape[80];
    if (clt_ops_tunes(ops, q->op)) {
        clt_attention_shape(p, accumulate_kv, shape, sizeof shape);
        CLT_TRY(clt_tune_pick(ops, &(clt_tune_question){*q, shape, kind}, v));
        if (*v) return CLT_OK;
    }
    return clt_variant_pick_for(ops, q, v);
}

static clt_status choose_forward(clt_ops *ops, const params *p, const clt_variant **v) {
    char options[CLT_ATTENTION_OPTIONS];
    CLT_TRY(clt_attention_validate(p));
    clt_attention_cpu_options(ops, p, options);
    const clt_variant_question q = {.op = "attention",
                                    .options = options,
                                    .takes = takes_forward,
                                    .check = clt_attention_check_forward,
                                    .call = p,
                                    .describe = describe_forward};
    return clt_attention_pick(ops, &q, p, false, &clt_attention_tune_forward, v);
}

static clt_status choose_backward(clt_ops *ops, const grad_params *g, const clt_variant **v) {
    char options[CLT_ATTENTION_OPTIONS];
    CLT_TRY(clt_attention_validate_gradients(g));
    CLT_TRY(clt_attention_validate(&g->fwd));
    clt_attention_cpu_options(ops, &g->fwd, options);
    const clt_variant_question q = {.op = "attention_backward",
                                    .options = options,
                                    .takes = takes_backward,
                                    .check = clt_attention_check_backward,
                                    .call = g,
                                    .describe = describe_backward};
    return clt_attention_pick(ops, &q, &g->fwd, g->accumulate_kv, &clt_attention_tune_backward, v);
}

clt_status clt_op_attention_forward(clt_ops *ops, const clt_attention_params *p) {
    const clt_variant *v;
    CLT_TRY(choose_forward(ops, p, &v));
    return clt_attention_run_forward(ops, v, p);
}

clt_status clt_op_attention_backward(clt_ops *ops, const clt_attention_grad_params *p) {
    const clt_variant *v;
    CLT_TRY(choose_backward(ops, p, &v));
    return clt_attention_run_backward(ops, v, p);
}

const char *clt_op_attention_variant(clt_ops *ops, const clt_attention_params *p) {
    const clt_variant *v;
    return choose_forward(ops, p, &v) == CLT_OK ? v->id : "";
}

const char *clt_op_attention_backward_variant(clt_ops *ops, const clt_attention_grad_params *p) {
    const clt_variant *v;
    return choose_backward(ops, p, &v) == CLT_OK ? v->id : "";
}

uint64_t clt_op_attention_workspace(clt_device_type type, const clt_attention_params *p) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(bodies); i++)
        if (bodies[i]->workspace) bytes = CLT_MAX(bytes, bodies[i]->workspace(type, p));
    return CLT_ROUND_UP(bytes, 4096);
}
