/* Attention: picks a body made for this head size and these features, checks it, queues it. */
#include <string.h>

#include "clt_dropout.h"
#include "clt_variant.h"
#include "ref/clt_ref.h"

enum { BLOCK = 64, MAX_ARGS = 64 };

typedef clt_attention_params params;
typedef clt_attention_grad_params grad_params;

/* --- arguments --------------------------------------------------------------------------------------------
 */

typedef struct {
    clt_arg a[MAX_ARGS];
    int n;
} arg_list;

static void add(arg_list *l, clt_arg a) {
    l->a[l->n++] = a;
}

static void add_ref(arg_list *l, clt_ref r) {
    add(l, CLT_BUF(r.buf));
    add(l, CLT_U64(r.off));
}

static void add_matrix(arg_list *l, clt_ref r, int64_t ld) {
    add_ref(l, r);
    add(l, CLT_U32(ld));
}

/* ATTENTION_ARGS of clkernels/attention/attention.clh. */
static arg_list common_args(const params *p) {
    arg_list l = {.n = 0};
    add_matrix(&l, p->q, p->ldq);
    add_matrix(&l, p->k, p->ldk);
    add_matrix(&l, p->v, p->ldv);
    add_ref(&l, p->slopes);
    add_ref(&l, p->seq_ids);
    add(&l, CLT_U32(p->seq));
    add(&l, CLT_U32(p->heads));
    add(&l, CLT_U32(p->heads / p->kv_heads));
    add(&l, CLT_F32(p->scale));
    add(&l, CLT_F32(p->softcap));
    add(&l, CLT_U32(p->window >= 0 ? CLT_MIN(p->window, p->seq) : 0));
    clt_dropout_constants c = clt_dropout_constants_of(p->dropout, p->seed);
    add(&l, CLT_U32(c.key[0]));
    add(&l, CLT_U32(c.key[1]));
    add(&l, CLT_U32(p->step));
    add(&l, CLT_U32(p->first_sample));
    add(&l, CLT_U32(p->layer * 8 + CLT_SITE_ATTENTION));
    add(&l, CLT_U32(c.threshold));
    add(&l, CLT_F32(c.scale));
    return l;
}

/* --- bodies: work-groups in local memory
 * --------------------------------------------------------------------- */

static clt_status launch_tiles(clt_ops *ops, const clt_variant *v, const char *name, const params *p,
                               int64_t heads, const arg_list *l) {
    size_t rows = (size_t)clt_variant_param(v, "ROWS", 16), tiles = ((size_t)p->seq + rows - 1) / rows;
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    return clt_launch(k, 3, (size_t[]){tiles * 4 * rows, (size_t)heads, (size_t)p->batch},
                      (size_t[]){4 * rows, 1, 1}, l->a, l->n);
}

static clt_status group_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    arg_list l = common_args(p);
    add_matrix(&l, p->o, p->ldo);
    add_ref(&l, p->lse);
    return launch_tiles(ops, v, "attention_forward", p, p->heads, &l);
}

static clt_status group_delta(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer *delta) {
    const params *p = &g->fwd;
    arg_list l = {.n = 0};
    add_matrix(&l, g->dout, g->lddout);
    add_matrix(&l, p->o, p->ldo);
    add(&l, CLT_BUF(delta));
    add(&l, CLT_U32(p->seq));
    add(&l, CLT_U32(p->heads));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_delta", v->options, &k));
    return clt_launch(k, 3, (size_t[]){CLT_ROUND_UP((size_t)p->seq, 64), (size_t)p->heads, (size_t)p->batch},
                      (size_t[]){64, 1, 1}, l.a, l.n);
}

static clt_status group_backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const params *p = &g->fwd;
    clt_buffer *delta;
    CLT_TRY(clt_ops_scratch(ops, 0, (uint64_t)(p->batch * p->heads * p->seq) * sizeof(float), &delta));
    CLT_TRY(group_delta(ops, v, g, delta));
    arg_list l = common_args(p);
    add_ref(&l, p->lse);
    add(&l, CLT_BUF(delta));
    add_matrix(&l, g->dout, g->lddout);
    arg_list kv = l;
    add_matrix(&l, g->dq, g->lddq);
    CLT_TRY(launch_tiles(ops, v, "attention_backward_q", p, p->heads, &l));
    add_matrix(&kv, g->dk, g->lddk);
    add_matrix(&kv, g->dv, g->lddv);
    add(&kv, CLT_U32(g->accumulate_kv));
    return launch_tiles(ops, v, "attention_backward_kv", p, p->kv_heads, &kv);
}

/* --- bodies: one work item a group
 * ----------------------------------------------------------------------------- */

static clt_status launch_blocks(clt_ops *ops, const clt_variant *v, const char *name, const params *p,
                                int64_t heads, const arg_list *l) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    size_t blocks = CLT_CEIL_DIV((size_t)p->seq, BLOCK);
    return clt_launch(k, 3, (size_t[]){blocks, (size_t)heads, (size_t)p->batch}, (size_t[]){1, 1, 1}, l->a,
                      l->n);
}

static clt_status cpu_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    arg_list l = common_args(p);
    add_matrix(&l, p->o, p->ldo);
    add_ref(&l, p->lse);
    return launch_blocks(ops, v, "attention_forward", p, p->heads, &l);
}

static clt_status cpu_backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const params *p = &g->fwd;
    arg_list l = common_args(p);
    add_matrix(&l, p->o, p->ldo);
    add_ref(&l, p->lse);
    add_matrix(&l, g->dout, g->lddout);
    add_matrix(&l, g->dq, g->lddq);
    add_matrix(&l, g->dk, g->lddk);
    add_matrix(&l, g->dv, g->lddv);
    add(&l, CLT_U32(g->accumulate_kv));
    if (strstr(v->options, "-DSPLIT=1")) {
        CLT_TRY(launch_blocks(ops, v, "attention_backward_q", p, p->heads, &l));
        return launch_blocks(ops, v, "attention_backward_kv", p, p->kv_heads, &l);
    }
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_backward", v->options, &k));
    return clt_launch(k, 3, (size_t[]){(size_t)p->kv_heads, (size_t)p->batch, 1}, (size_t[]){1, 1, 1}, l.a,
                      l.n);
}

static clt_status run_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    return strcmp(v->body, "cpu") ? group_forward(ops, v, p) : cpu_forward(ops, v, p);
}

static clt_status run_backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    return strcmp(v->body, "cpu") ? group_backward(ops, v, g) : cpu_backward(ops, v, g);
}

/* --- the check
 * ------------------------------------------------------------------------------------------------ */

/* A small problem with the head size and the features of the real one: two blocks of keys, one of them partly
 * filled, two query heads on one key/value head. */
enum { CHECK_SEQ = 75, CHECK_HEADS = 2, CHECK_TENSORS = 9 };
enum { T_Q, T_K, T_V, T_DOUT, T_O, T_LSE, T_DQ, T_DK, T_DV };

typedef struct {
    grad_params g;
    clt_ref_attention_params ref;
    clt_buffer *buf; /* all tensors, then slopes and sequence ids */
    float *want;     /* the oracle's copy of it */
    size_t at[CHECK_TENSORS + 1], slopes, ids, total;
} check_case;

static void check_layout(check_case *c, const params *p) {
    int64_t wide = CHECK_HEADS * p->head_dim, narrow = p->head_dim;
    const int64_t cols[CHECK_TENSORS] = {wide, narrow, narrow, wide, wide, CHECK_HEADS, wide, narrow, narrow};
    for (int i = 0; i < CHECK_TENSORS; i++) c->at[i + 1] = c->at[i] + (size_t)(CHECK_SEQ * cols[i]);
    c->slopes = c->at[CHECK_TENSORS];
    c->ids = c->slopes + CHECK_HEADS;
    c->total = c->ids + CHECK_SEQ;
}

/* Inputs: a fixed sequence of numbers in [-2, 2); the sequence ids change in the middle of the first block.
 */
static void check_fill(check_case *c) {
    uint32_t x = 12345;
    for (size_t i = 0; i < c->slopes; i++) {
        x = x * 1664525u + 1013904223u;
        c->want[i] = (float)(x >> 8) * 0x1p-22f - 2.0f;
    }
    for (int i = 0; i < CHECK_HEADS; i++) c->want[c->slopes + (size_t)i] = 1.0f / (float)(4 << i);
    for (int i = 0; i < CHECK_SEQ; i++) ((int32_t *)c->want)[c->ids + (size_t)i] = i / 30;
}

static void check_params(check_case *c, const params *like) {
    int64_t d = like->head_dim;
    params *p = &c->g.fwd;
    *p = *like;
    p->batch = 1, p->seq = CHECK_SEQ, p->heads = CHECK_HEADS, p->kv_heads = 1;
    p->window = like->window >= 0 ? 40 : -1;
    p->ldq = p->ldo = c->g.lddout = c->g.lddq = CHECK_HEADS * d;
    p->ldk = p->ldv = c->g.lddk = c->g.lddv = d;
    clt_ref *const place[CHECK_TENSORS] = {&p->q,   &p->k,    &p->v,    &c->g.dout, &p->o,
                                           &p->lse, &c->g.dq, &c->g.dk, &c->g.dv};
    for (int i = 0; i < CHECK_TENSORS; i++) *place[i] = (clt_ref){c->buf, c->at[i]};
    if (like->slopes.buf) p->slopes = (clt_ref){c->buf, c->slopes};
    if (like->seq_ids.buf) p->seq_ids = (clt_ref){c->buf, c->ids};
}

static void check_oracle(check_case *c) {
    const params *p = &c->g.fwd;
    float *t[CHECK_TENSORS];
    for (int i = 0; i < CHECK_TENSORS; i++) t[i] = c->want + c->at[i];
    c->ref = (clt_ref_attention_params){.batch = p->batch,
                                        .seq = p->seq,
                                        .heads = p->heads,
                                        .kv_heads = p->kv_heads,
                                        .head_dim = p->head_dim,
                                        .q = t[T_Q],
                                        .k = t[T_K],
                                        .v = t[T_V],
                                        .o = t[T_O],
                                        .lse = t[T_LSE],
                                        .ldq = p->ldq,
                                        .ldk = p->ldk,
                                        .ldv = p->ldv,
                                        .ldo = p->ldo,
                                        .scale = p->scale,
                                        .softcap = p->softcap,
                                        .slopes = p->slopes.buf ? c->want + c->slopes : NULL,
                                        .window = p->window,
                                        .seq_ids = p->seq_ids.buf ? (const int32_t *)c->want + c->ids : NULL,
                                        .dropout = p->dropout,
                                        .seed = p->seed,
                                        .step = p->step,
                                        .first_sample = p->first_sample,
                                        .layer = p->layer,
                                        .dout = t[T_DOUT],
                                        .dq = t[T_DQ],
                                        .dk = t[T_DK],
                                        .dv = t[T_DV],
                                        .lddout = c->g.lddout,
                                        .lddq = c->g.lddq,
                                        .lddk = c->g.lddk,
                                        .lddv = c->g.lddv};
    clt_ref_attention_forward(&c->ref);
    clt_ref_attention_backward(&c->ref);
}

static clt_status check_run(clt_ops *ops, const clt_variant *v, check_case *c) {
    CLT_TRY(clt_buffer_write(c->buf, 0, c->want, c->total * sizeof(float)));
    CLT_TRY(run_forward(ops, v, &c->g.fwd));
    CLT_TRY(run_backward(ops, v, &c->g));
    check_oracle(c);
    static const struct {
        int tensor;
        const char *name;
    } out[] = {{T_O, "output"}, {T_LSE, "log-sum-exp"}, {T_DQ, "dq"}, {T_DK, "dk"}, {T_DV, "dv"}};
    for (size_t i = 0; i < CLT_COUNT_OF(out); i++) {
        size_t at = c->at[out[i].tensor];
        CLT_TRY(clt_variant_compare(ops, out[i].name, (clt_ref){c->buf, at}, c->want + at,
                                    c->at[out[i].tensor + 1] - at));
    }
    return CLT_OK;
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    check_case c = {.buf = NULL};
    check_layout(&c, ctx);
    CLT_TRY(clt_buffer_create(clt_ops_device(ops), c.total * sizeof(float), "attention check", &c.buf));
    c.want = clt_malloc(c.total * sizeof(float));
    check_fill(&c);
    check_params(&c, ctx);
    clt_status st = check_run(ops, v, &c);
    clt_free(c.want);
    clt_buffer_destroy(c.buf);
    return st;
}

/* --- choosing
 * ------------------------------------------------------------------------------------------------- */

static clt_status validate(const params *p) {
    if (p->batch < 1 || p->seq < 1 || p->heads < 1 || p->kv_heads < 1 || p->head_dim < 1 ||
        p->heads % p->kv_heads != 0)
        return clt_error(
            CLT_FAIL,
            "attention: bad sizes: batch %lld, sequence %lld, heads %lld, kv heads %lld, head size %lld",
            (long long)p->batch, (long long)p->seq, (long long)p->heads, (long long)p->kv_heads,
            (long long)p->head_dim);
    if (p->seq > INT32_MAX / 2 || !(p->dropout >= 0.0f && p->dropout < 1.0f))
        return clt_error(CLT_FAIL, "attention: sequence %lld or dropout %g is out of range",
                         (long long)p->seq, (double)p->dropout);
    return CLT_OK;
}

/* Whether the CPU body's backward pass goes in two launches. One launch has a work item per key/value head of
 * a sample and does 5 products a block, two launches have many more items and do 7: so they pay where heads
 * leave cores idle. The batch is left out, because it may change during a run and programs must not. */
static bool split_backward(const clt_ops *ops, const params *p) {
    int64_t cores = CLT_MAX((int64_t)clt_device_get_facts(clt_ops_device(ops))->compute_units, 1);
    return p->kv_heads * 7 < CLT_ROUND_UP(p->kv_heads, cores) * 5;
}

/* The body for the head size and the features of p. */
static clt_status choose(clt_ops *ops, const params *p, const clt_variant **out) {
    CLT_TRY(validate(p));
    char options[160];
    snprintf(options, sizeof options,
             " -DHEAD_DIM=%lld -DALIBI=%d -DSOFTCAP=%d -DWINDOW=%d -DSEQ_IDS=%d -DDROPOUT=%d -DSPLIT=%d",
             (long long)p->head_dim, p->slopes.buf != NULL, p->softcap > 0.0f, p->window >= 0,
             p->seq_ids.buf != NULL, p->dropout > 0.0f, split_backward(ops, p));
    params copy = *p;
    return clt_variant_pick_with(ops, "attention", options, check, &copy, out);
}

clt_status clt_op_attention_forward(clt_ops *ops, const clt_attention_params *p) {
    const clt_variant *v;
    CLT_TRY(choose(ops, p, &v));
    return run_forward(ops, v, p);
}

clt_status clt_op_attention_backward(clt_ops *ops, const clt_attention_grad_params *p) {
    const clt_variant *v;
    CLT_TRY(choose(ops, &p->fwd, &v));
    return run_backward(ops, v, p);
}

uint64_t clt_op_attention_workspace(clt_device_type type, const clt_attention_params *p) {
    (void)type; /* any device may fall back to the body that keeps delta */
    return CLT_ROUND_UP((uint64_t)(p->batch * p->heads * p->seq) * sizeof(float), 4096);
}
