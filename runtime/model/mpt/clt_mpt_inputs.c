/* Inputs of blocks that wait for the backward pass in host memory or in a file (clt_model_shape.host_inputs).
 *
 * Few places on the device hold them in turn. A copy has the time of CLT_MPT_INPUT_PLACES - 1 blocks: in the
 * forward pass until its place takes another input, in the backward pass until its block runs. */
#include "runtime/device/clt_spool.h"
#include "runtime/model/mpt/clt_mpt_internal.h"

static clt_device *device_of(const clt_mpt *m) {
    return clt_ops_device(m->ops);
}

static size_t bytes_of(const clt_mpt *m) {
    return (size_t)(m->rows * m->cfg.d_model) * sizeof(float);
}

static void release(clt_mark **mark) {
    clt_mark_release(*mark);
    *mark = NULL;
}

/* --- memory --- */

/* Where the input of a block waits. */
static clt_status create_away(const clt_mpt *m, clt_buffer **out) {
    static const char name[] = "input of a block";
    return m->shape.file_inputs ? clt_buffer_create_in_file(device_of(m), clt_spool_file(m->shape.spool),
                                                            bytes_of(m), name, out)
                                : clt_buffer_create_pinned(device_of(m), bytes_of(m), name, out);
}

clt_status clt_mpt_inputs_take(clt_mpt *m) {
    enum { PLACES = CLT_MPT_INPUT_PLACES };
    const int layers = (int)m->cfg.n_layers;
    clt_mpt_inputs *in = &m->inputs;
    clt_ref place[PLACES] = {{0}};
    for (int i = 0; i < layers; i++) {
        clt_ref *to = m->shape.host_inputs ? &place[i % PLACES] : &m->acts[i].x;
        if (!m->shape.host_inputs || i < PLACES)
            CLT_TRY(clt_mpt_take(m, &m->memory.activations, "residual", m->rows * m->cfg.d_model,
                                 sizeof(float), to));
        m->acts[i].x = *to;
    }
    if (!m->shape.host_inputs || layers <= PLACES) return CLT_OK;
    const uint64_t all = (uint64_t)(layers - PLACES) * bytes_of(m);
    *(m->shape.file_inputs ? &m->memory.file : &m->memory.host) = all;
    m->memory.input = bytes_of(m);
    if (!m->ops) return CLT_OK;
    in->away = clt_calloc((size_t)(layers - PLACES), sizeof(clt_buffer *));
    for (; in->count < layers - PLACES; in->count++) CLT_TRY(create_away(m, &in->away[in->count]));
    return CLT_OK;
}

void clt_mpt_inputs_free(clt_mpt *m) {
    clt_mpt_inputs *in = &m->inputs;
    for (int i = 0; i < CLT_MPT_INPUT_PLACES; i++) {
        release(&in->left[i]);
        release(&in->there[i]);
    }
    release(&in->sent);
    for (int i = 0; i < in->count; i++) clt_buffer_destroy(in->away[i]);
    clt_free(in->away);
}

/* --- a pass --- */

/* A rehearsal computes nothing that could be copied. */
static bool moves(const clt_mpt *m) {
    return m->inputs.away && m->in_training_pass && !clt_device_rehearses(device_of(m));
}

/* The input of `block` to where it waits, or back, behind what the queue in use has. */
static clt_status copy(clt_mpt *m, int block, bool back) {
    const clt_ref x = m->acts[block].x;
    clt_buffer *away = m->inputs.away[block];
    uint64_t offset;
    void *host;
    if (clt_buffer_file(away, &offset))
        return back ? clt_spool_fetch(m->shape.spool, x.buf, 0, offset, bytes_of(m))
                    : clt_spool_send(m->shape.spool, x.buf, 0, offset, bytes_of(m));
    CLT_TRY(clt_buffer_host(away, &host));
    return back ? clt_buffer_fetch(x.buf, 0, host, bytes_of(m))
                : clt_buffer_send(x.buf, 0, host, bytes_of(m));
}

clt_status clt_mpt_inputs_leave(clt_mpt *m, int block) {
    clt_mpt_inputs *in = &m->inputs;
    clt_mark **left = &in->left[block % CLT_MPT_INPUT_PLACES],
             **next = &in->left[(block + 1) % CLT_MPT_INPUT_PLACES];
    if (!moves(m)) return CLT_OK;
    if (block < in->count) {
        CLT_TRY(clt_device_hand_over(device_of(m), CLT_QUEUE_OUT));
        CLT_TRY(copy(m, block, false));
        release(&in->sent);
        CLT_TRY(clt_device_mark(device_of(m), left));
        CLT_TRY(clt_device_mark(device_of(m), &in->sent));
        CLT_TRY(clt_device_use(device_of(m), CLT_QUEUE_COMPUTE));
    }
    CLT_TRY(clt_device_after(device_of(m), *next));
    release(next);
    return CLT_OK;
}

clt_status clt_mpt_inputs_return(clt_mpt *m, int block) {
    clt_mpt_inputs *in = &m->inputs;
    const int earlier = block - CLT_MPT_INPUT_PLACES + 1;
    clt_mark **there = &in->there[block % CLT_MPT_INPUT_PLACES];
    if (!moves(m)) return CLT_OK;
    if (earlier >= 0 && earlier < in->count) {
        CLT_TRY(clt_device_hand_over(device_of(m), CLT_QUEUE_IN));
        /* of all places: copies leave one after the other */
        CLT_TRY(clt_device_after(device_of(m), in->sent));
        CLT_TRY(copy(m, earlier, true));
        CLT_TRY(clt_device_mark(device_of(m), &in->there[earlier % CLT_MPT_INPUT_PLACES]));
        CLT_TRY(clt_device_use(device_of(m), CLT_QUEUE_COMPUTE));
    }
    CLT_TRY(clt_device_after(device_of(m), *there));
    release(there);
    return CLT_OK;
}
