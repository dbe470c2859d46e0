/* Attention in 8-bit blocks: rounding of the operands, choice of a row, and the body in work-groups. */
#include "runtime/ops/clt_op_attention8.h"

#include <string.h>

#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/clt_op_attention8_internal.h"

enum { ROW_ITEMS = 64, GPU_ROW_ITEMS = 128 }; /* work-items of a group of attention8_rows */

typedef clt_attention_params params;
typedef clt_attention_grad_params grad_params;
typedef clt_attention8_input input;
typedef clt_attention_args arg_list;

/* --- the operands --- */

static uint64_t rows_of(const params *p, int64_t heads) {
    return (uint64_t)(p->batch * heads * CLT_ROUND_UP(p->seq, 64));
}

static uint64_t pitch_of(const params *p) {
    return CLT_ROUND_UP((uint64_t)p->head_dim, 8);
}

/* Places the rows of all tensors: numbers in scratch slot 0, scales and delta in slot 1. Every tensor starts
 * at a multiple of 128 bytes. Returns the elements in *numbers and *floats. */
static void place_input(const params *p, input *in, uint64_t *numbers, uint64_t *floats) {
    const int64_t heads[] = {p->heads, p->kv_heads, p->kv_heads, p->heads};
    clt_attention8_rows *const all[] = {&in->q, &in->k, &in->v, &in->dout};
    *numbers = *floats = 0;
    for (int t = 0; t < 4; t++) {
        all[t]->numbers.off = *numbers, all[t]->scales.off = *floats;
        *numbers += CLT_ROUND_UP(rows_of(p, heads[t]) * pitch_of(p), 64);
        *floats += CLT_ROUND_UP(rows_of(p, heads[t]), 32);
    }
    in->k_values.off = *numbers, in->v_values.off = in->v.numbers.off;
    *numbers += CLT_ROUND_UP(rows_of(p, p->kv_heads) * pitch_of(p), 64);
    in->delta.off = *floats;
    in->lse.off = *floats + CLT_ROUND_UP(rows_of(p, p->heads), 32);
    *floats = in->lse.off + rows_of(p, p->heads);
}

uint64_t clt_op_attention8_workspace(clt_device_type type, const params *p) {
    input in;
    uint64_t numbers, floats;
    place_input(p, &in, &numbers, &floats);
    return CLT_ROUND_UP(numbers * 2, 4096) + CLT_ROUND_UP(floats * sizeof(float), 4096) +
           (type == CLT_DEVICE_CPU ? clt_attention8_cpu_workspace(p) : 0);
}

static clt_status make_input(clt_ops *ops, const params *p, input *in) {
    uint64_t numbers, floats;
    clt_buffer *n, *f;
    place_input(p, in, &numbers, &floats);
    CLT_TRY(clt_ops_scratch(ops, 0, numbers * 2, &n));
    CLT_TRY(clt_ops_scratch(ops, 1, floats * sizeof(float), &f));
    clt_attention8_rows *const all[] = {&in->q, &in->k, &in->v, &in->dout};
    for (int t = 0; t < 4; t++) all[t]->numbers.buf = n, all[t]->scales.buf = f;
    in->k_values.buf = in->v_values.buf = n;
    in->delta.buf = in->lse.buf = f;
    return CLT_OK;
}

/* How the rows' kernels run on this device: work-items of a group, and for a row. */
typedef struct {
    size_t items, lanes;
    char options[CLT_ATTENTION_OPTIONS];
} row_launch;

/* Whether a work-item may read eight elements of each of n tensors at once. */
static bool have_eights(const params *p, const clt_tensor *const *x, size_t n) {
    bool all = p->head_dim % 8 == 0;
    for (size_t i = 0; i < n; i++) all = all && x[i]->ld % 8 == 0 && x[i]->ref.off % 8 == 0;
    return all;
}

static row_launch row_launch_of(clt_ops *ops, const params *p, bool eights) {
    const clt_device_facts *facts = clt_device_get_facts(clt_ops_device(ops));
    row_launch r = {.items = ROW_ITEMS, .lanes = 1};
    if (facts->type != CLT_DEVICE_CPU) {
        if (facts->max_work_group >= GPU_ROW_ITEMS) r.items = GPU_ROW_ITEMS;
        while (r.lanes * 8 < pitch_of(p)) r.lanes *= 2;
    }
    snprintf(r.options, sizeof r.options, " -DHEAD_DIM=%lld -DTYPE=%d -DLANES=%zu -DWG=%zu -DVECTOR=%d",
             (long long)p->head_dim, (int)p->q.type, r.lanes, r.items, eights);
    return r;
}

static clt_status launch_rows(clt_kernel *k, const row_launch *r, const params *p, int64_t heads,
                              const arg_list *l) {
    const size_t global = CLT_ROUND_UP((size_t)p->seq * r->lanes, r->items);
    return clt_launch(k, 3, (size_t[]){global, (size_t)heads, (size_t)p->batch}, (size_t[]){r->items, 1, 1},
                      l->a, l->n);
}

/* Rounds q, k and v. A row of the table with VALUES reads rows of k and v times their scales: in the forward
 * pass of k instead of the whole numbers, in the backward pass of both, of v instead of them. */
static clt_status round_qkv(clt_ops *ops, const clt_variant *v, const params *p, const input *in,
                            bool backward) {
    const clt_tensor *const all[] = {&p->q, &p->k, &p->v};
    row_launch r = row_launch_of(ops, p, have_eights(p, all, CLT_COUNT_OF(all)));
    clt_kernel *k;
    arg_list l = {.n = 0};
    if (!strcmp(v->body, "wgmma")) {
        const size_t n = strlen(r.options);
        snprintf(r.options + n, sizeof r.options - n, "%s",
                 backward ? " -DK_VALUES=1 -DV_NUMBERS=0 -DV_VALUES=1" : " -DK_NUMBERS=0 -DK_VALUES=1");
    }
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->uses, "attention8_rows", r.options, &k));
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_attention_add_tensor(&l, *all[i]);
    const clt_ref to[] = {in->q.numbers, in->k.numbers, in->v.numbers, in->k_values, in->v_values};
    const clt_ref scales[] = {in->q.scales, in->k.scales, in->v.scales};
    clt_attention_add(&l, CLT_BUF(in->q.numbers.buf));
    for (size_t i = 0; i < CLT_COUNT_OF(to); i++) clt_attention_add(&l, CLT_U64(to[i].off));
    clt_attention_add(&l, CLT_BUF(in->q.scales.buf));
    for (size_t i = 0; i < CLT_COUNT_OF(scales); i++) clt_attention_add(&l, CLT_U64(scales[i].off));
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->kv_heads));
    return launch_rows(k, &r, p, p->heads + p->kv_heads, &l);
}

static clt_status round_dout(clt_ops *ops, const clt_variant *v, const grad_params *g, const input *in) {
    const params *p = &g->fwd;
    const clt_tensor *const all[] = {&g->dout, &p->o};
    const row_launch r = row_launch_of(ops, p, have_eights(p, all, CLT_COUNT_OF(all)));
    clt_kernel *k;
    arg_list l = {.n = 0};
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->uses, "attention8_dout", r.options, &k));
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_attention_add_tensor(&l, *all[i]);
    clt_attention_add_ref(&l, in->dout.numbers);
    clt_attention_add_ref(&l, in->dout.scales);
    clt_attention_add(&l, CLT_U64(in->delta.off));
    clt_attention_add(&l, CLT_U64(in->lse.off));
    clt_attention_add_ref(&l, p->lse);
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    return launch_rows(k, &r, p, p->heads, &l);
}

/* --- the body in work-groups --- */

arg_list clt_attention8_common_args(const params *p, const input *in) {
    arg_list l = {.n = 0};
    const clt_ref all[] = {in->q.numbers, in->k.numbers, in->v.numbers, in->q.scales,
                           in->k.scales,  in->v.scales,  p->slopes,     p->seq_ids};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_attention_add_ref(&l, all[i]);
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(&l, CLT_F32(p->scale));
    clt_attention_add(&l, CLT_F32(p->softcap));
    clt_attention_add(&l, CLT_U32(p->window >= 0 ? CLT_MIN(p->window, p->seq) : 0));
    const clt_dropout_constants c = clt_dropout_constants_of(p->dropout, p->seed);
    clt_attention_add(&l, CLT_U32(c.key[0]));
    clt_attention_add(&l, CLT_U32(c.key[1]));
    clt_attention_add(&l, CLT_U32(p->step));
    clt_attention_add(&l, CLT_U32(p->first_sample));
    clt_attention_add(&l, CLT_U32(p->layer * 8 + CLT_SITE_ATTENTION));
    clt_attention_add(&l, CLT_U32(c.threshold));
    clt_attention_add(&l, CLT_F32(c.scale));
    return l;
}

static clt_status launch_tiles(clt_ops *ops, const clt_variant *v, const char *name, const params *p,
                               int64_t heads, const arg_list *l) {
    const size_t rows = (size_t)clt_variant_param(v, "ROWS", 16), tiles = CLT_CEIL_DIV((size_t)p->seq, rows);
    const size_t items = (size_t)clt_variant_param(v, "ITEMS", 4 * (long)rows);
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    return clt_launch(k, 3, (size_t[]){tiles * items, (size_t)heads, (size_t)p->batch},
                      (size_t[]){items, 1, 1}, l->a, l->n);
}

static clt_status group_forward(clt_ops *ops, const clt_variant *v, const params *p, const input *in) {
    arg_list l = clt_attention8_common_args(p, in);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add_ref(&l, p->lse);
    return launch_tiles(ops, v, "attention8_forward", p, p->heads, &l);
}

static clt_status group_backward(clt_ops *ops, const clt_variant *v, const grad_params *g, const input *in) {
    const params *p = &g->fwd;
    arg_list l = clt_attention8_common_args(p, in);
    clt_attention_add_ref(&l, in->dout.numbers);
    clt_attention_add_ref(&l, in->dout.scales);
    clt_attention_add_ref(&l, p->lse);
    clt_attention_add_ref(&l, in->delta);
    arg_list kv = l;
    clt_attention_add_tensor(&l, g->dq);
    CLT_TRY(launch_tiles(ops, v, "attention8_backward_q", p, p->heads, &l));
    clt_attention_add_tensor(&kv, g->dk);
    clt_attention_add_tensor(&kv, g->dv);
    clt_attention_add(&kv, CLT_U32(g->accumulate_kv));
    return launch_tiles(ops, v, "attention8_backward_kv", p, p->kv_heads, &kv);
}

/* --- all bodies --- */

static const clt_attention8_body group = {"group", group_forward, group_backward, NULL, NULL};
static const clt_attention8_body *const bodies[] = {&group, &clt_attention8_wgmma, &clt_attention8_cpu};

static const clt_attention8_body *body_of(const clt_variant *v) {
    for (size_t i = 0; i < CLT_COUNT_OF(bodies); i++)
        if (!strcmp(v->body, bodies[i]->name)) return bodies[i];
    return NULL;
}

static clt_status unknown_body(const clt_variant *v) {
    return clt_error(CLT_FAIL, "%s.vt: variant %s has the unknown body '%s'", v->op, v->id, v->body);
}

clt_status clt_attention8_run_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    const clt_attention8_body *body = body_of(v);
    input in;
    if (!body) return unknown_body(v);
    CLT_TRY(make_input(ops, p, &in));
    CLT_TRY(body->blocks ? clt_attention8_cpu_round(ops, v, p, NULL, &in) : round_qkv(ops, v, p, &in, false));
    return body->forward(ops, v, p, &in);
}

clt_status clt_attention8_run_backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const clt_attention8_body *body = body_of(v);
    input in;
    if (!body) return unknown_body(v);
    CLT_TRY(make_input(ops, &g->fwd, &in));
    if (body->blocks) {
        CLT_TRY(clt_attention8_cpu_round(ops, v, &g->fwd, &g->dout, &in));
    } else {
        CLT_TRY(round_qkv(ops, v, &g->fwd, &in, true));
        CLT_TRY(round_dout(ops, v, g, &in));
    }
    return body->backward(ops, v, g, &in);
}

/* --- choosing --- */

/* What a row's params say. */
static bool row_takes(const clt_variant *v, const params *p) {
    return (clt_variant_param(v, "MASKS", 3) >> p->mask & 1) &&
           clt_dtype_in(p->q.type, (uint32_t)clt_variant_param(v, "TYPES", CLT_DTYPE_PLAIN)) &&
           p->head_dim >= clt_variant_param(v, "MIN_D", 1) &&
           p->head_dim <= clt_variant_param(v, "MAX_D", CLT_ATTENTION8_MAX_HEAD);
}

bool clt_attention8_takes_forward(const clt_variant *v, const params *p) {
    const clt_attention8_body *body = body_of(v);
    return row_takes(v, p) && !(body && body->takes_forward && !body->takes_forward(v, p));
}

bool clt_attention8_takes_backward(const clt_variant *v, const grad_params *g) {
    const clt_attention8_body *body = body_of(v);
    return row_takes(v, &g->fwd) && !(body && body->takes_backward && !body->takes_backward(v, &g->fwd));
}

static bool takes_forward(const clt_variant *v, const void *call) {
    return clt_attention8_takes_forward(v, call);
}

static bool takes_backward(const clt_variant *v, const void *call) {
    return clt_attention8_takes_backward(v, call);
}

static clt_status check_call(const params *p) {
    CLT_TRY(clt_attention_validate(p));
    if (p->head_dim > CLT_ATTENTION8_MAX_HEAD)
        return clt_error(CLT_FAIL, "attention in 8-bit blocks: head size %lld; supported: 1..%d",
                         (long long)p->head_dim, CLT_ATTENTION8_MAX_HEAD);
    return CLT_OK;
}

/* Only programs for CPUs have an option for launches. */
static void make_options(const clt_ops *ops, const params *p, char out[CLT_ATTENTION_OPTIONS]) {
    if (clt_device_get_facts(clt_ops_device(ops))->type == CLT_DEVICE_CPU)
        clt_attention_cpu_options(ops, p, out);
    else
        clt_attention_options(p, out);
}

static clt_status choose_forward(clt_ops *ops, const params *p, const clt_variant **v) {
    char options[CLT_ATTENTION_OPTIONS];
    CLT_TRY(check_call(p));
    make_options(ops, p, options);
    const clt_variant_question q = {.op = "attention8",
                                    .options = options,
                                    .takes = takes_forward,
                                    .check = clt_attention8_check_forward,
                                    .call = p};
    return clt_attention_pick(ops, &q, p, false, &clt_attention8_tune_forward, v);
}

static clt_status choose_backward(clt_ops *ops, const grad_params *g, const clt_variant **v) {
    char options[CLT_ATTENTION_OPTIONS];
    CLT_TRY(check_call(&g->fwd));
    CLT_TRY(clt_attention_validate_gradients(g));
    make_options(ops, &g->fwd, options);
    const clt_variant_question q = {.op = "attention8_backward",
                                    .options = options,
                                    .takes = takes_backward,
                                    .check = clt_attention8_check_backward,
                                    .call = g};
    return clt_attention_pick(ops, &q, &g->fwd, g->accumulate_kv, &clt_attention8_tune_backward, v);
}

clt_status clt_op_attention8_forward(clt_ops *ops, const params *p) {
    const clt_variant *v;
    CLT_TRY(choose_forward(ops, p, &v));
    return clt_attention8_run_forward(ops, v, p);
}

clt_status clt_op_attention8_backward(clt_ops *ops, const grad_params *g) {
    const clt_variant *v;
    CLT_TRY(choose_backward(ops, g, &v));
    return clt_attention8_run_backward(ops, v, g);
}

const char *clt_op_attention8_variant(clt_ops *ops, const params *p) {
    const clt_variant *v;
    return choose_forward(ops, p, &v) == CLT_OK ? v->id : "";
}

const char *clt_op_attention8_backward_variant(clt_ops *ops, const grad_params *g) {
    const clt_variant *v;
    return choose_backward(ops, g, &v) == CLT_OK ? v->id : "";
}
