/* The last rows of attention, over kept keys and values: the rows of attention_last.vt. */
#include <string.h>

#include "runtime/ops/clt_op_attention_internal.h"

typedef clt_attention_params params;

clt_status clt_attention_run_last(clt_ops *ops, const clt_variant *v, const params *p, int64_t rows) {
    clt_attention_args l = clt_attention_common_args(p);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add(&l, CLT_U32(p->seq - rows));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_last", v->options, &k));
    size_t items = strcmp(v->body, "cpu") == 0 ? 1 : 64;
    return clt_launch(k, 3, (size_t[]){items, (size_t)p->heads, (size_t)rows}, (size_t[]){items, 1, 1}, l.a,
                      l.n);
}

clt_status clt_op_attention_last(clt_ops *ops, const params *p, int64_t rows) {
    const clt_variant *v;
    char options[CLT_ATTENTION_OPTIONS];
    CLT_TRY(clt_attention_validate(p));
    if (rows < 1 || rows > p->seq || p->batch != 1 || p->seq_ids.buf || p->dropout > 0.0f)
        return clt_error(CLT_FAIL,
                         "attention, last rows: %lld of %lld rows, %lld samples%s%s; supported: one sample "
                         "without sequence "
                         "ids and dropout",
                         (long long)rows, (long long)p->seq, (long long)p->batch,
                         p->seq_ids.buf ? ", sequence ids" : "", p->dropout > 0.0f ? ", dropout" : "");
    clt_attention_options(p, options);
    const clt_variant_question q = {
        .op = "attention_last", .options = options, .check = clt_attention_check_last, .call = p};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return clt_attention_run_last(ops, v, p, rows);
}
