/* The optimizer's step on the cores of the host (cltrain.offload_update: host).
 *
 * The state that cltrain.offload: host keeps in pinned memory is updated where it is, by the same kernels,
 * built for a CPU device: in numerics exact the same bits. What of it is on the device, the total gradient
 * and the weights that the model reads unless they are offloaded, too, passes through pinned places, stretch
 * by stretch: while the cores work on one stretch, gradients of the next ones come and new weights of the one
 * before leave. So the link carries 6 bytes of an element of a 16-bit run, or none, where the state itself
 * would take 24. State that stays on the device (cltrain.offload_ratio) is updated there meanwhile.
 *
 * On one rank the next forward pass does not wait for all of it: before the pass reads a unit the step is
 * moved on as far as that unit, while the device computes the units before it. It is at its end before the
 * backward pass, which makes new gradients, and whenever clt_engine_settle or the collection of the step
 * returns. */
#include "runtime/train/engine/clt_engine_internal.h"
#include "runtime/train/engine/clt_plan_memory.h"

enum { PLACES = CLT_PLAN_UPDATE_PLACES, STATUS = STATUS_FINITE + 1 };

typedef struct {
    clt_buffer *pinned;              /* `most` elements of each passing state; NULL: none passes */
    char *memory;                    /* of it */
    clt_slab_range x;                /* the stretch */
    clt_buffer *element[CLT_STATES]; /* of the CPU: its elements; NULL: not in this run */
    clt_mark *there, *left;          /* of the device: behind the copies to the host, and back */
    clt_mark *updated;               /* of the CPU */
} place;

struct clt_engine_host_update {
    clt_device *cpu;
    clt_ops *ops;
    clt_buffer *groups, *block_group, *status; /* as the engine's */
    uint64_t most;                             /* elements of a stretch */
    unsigned passing;                          /* mask of the states that are on the device */
    size_t row[CLT_STATES];                    /* the first byte of each of them in a place */
    place place[PLACES];
    bool skips; /* this step changes nothing */
    /* The step on its way: stretches, from which the next ones come, and how many of them have been brought,
     * have their kernels queued, and have left. */
    bool open;
    clt_slab *total;
    clt_engine_stretches all;
    bool more;
    uint64_t brought, updated, left;
    uint64_t passed; /* what the host updates of the elements before it has left */
    clt_offload_traffic traffic;
};

/* The slab of a state in this step; NULL: not in this run. */
static clt_slab *slab_of(const clt_engine *e, clt_slab *total, int state) {
    clt_slab *const of[CLT_STATES] = {[CLT_STATE_WEIGHTS] = e->master,
                                      [CLT_STATE_FIRST] = e->m,
                                      [CLT_STATE_SECOND] = e->v,
                                      [CLT_STATE_COPY] = e->copy,
                                      [CLT_STATE_GRADIENT] = total};
    return of[state];
}

/* --- creation --- */

static clt_status open_cpu(clt_engine *e, clt_engine_host_update *h) {
    clt_device_params device = clt_device_params_default();
    clt_ops_params ops = clt_ops_params_default();
    device.cpu = true;
    device.local_rank = clt_group_local_rank(e->group);
    device.local_size = clt_group_local_size(e->group);
    device.need_exact = e->cfg->numerics == CLT_EXACT;
    ops.numerics = e->cfg->numerics;
    CLT_TRY(clt_device_open(&device, &h->cpu));
    CLT_TRY(clt_ops_create(h->cpu, &ops, &h->ops));
    const clt_device_facts *f = clt_device_get_facts(h->cpu);
    if (clt_group_rank(e->group) == 0)
        clt_info("the optimizer's step runs on %s (%s), %u compute units", f->name, f->platform,
                 f->compute_units);
    return CLT_OK;
}

static clt_status copy_block_groups(clt_engine *e, clt_engine_host_update *h) {
    const size_t bytes = clt_buffer_bytes(e->block_group);
    uint8_t *block = clt_malloc(bytes);
    clt_status st = clt_buffer_create(h->cpu, bytes, "optimizer groups", &h->block_group);
    if (st == CLT_OK) st = clt_buffer_read(e->block_group, 0, block, bytes);
    if (st == CLT_OK) st = clt_buffer_write(h->block_group, 0, block, bytes);
    clt_free(block);
    return st;
}

static clt_status create_places(clt_engine *e, clt_engine_host_update *h) {
    size_t bytes = 0;
    h->most = clt_plan_update_stretch(e->table.total);
    for (int s = 0; s < CLT_STATES; s++) {
        const clt_slab *slab = slab_of(e, NULL, s);
        if ((!slab && s != CLT_STATE_GRADIENT) || clt_offload_has(e->offload, (clt_state)s)) continue;
        h->passing |= 1u << s;
        h->row[s] = bytes;
        bytes += h->most * (slab ? slab->element_bytes : sizeof(float));
    }
    for (int i = 0; i < PLACES && bytes; i++) {
        void *memory;
        CLT_TRY(
            clt_buffer_create_pinned(clt_ops_device(e->ops), bytes, "passing state", &h->place[i].pinned));
        CLT_TRY(clt_buffer_host(h->place[i].pinned, &memory));
        h->place[i].memory = memory;
    }
    return CLT_OK;
}

clt_status clt_engine_host_update_create(clt_engine *e, clt_engine_host_update **out) {
    clt_engine_host_update *h = clt_calloc(1, sizeof *h);
    clt_status st = open_cpu(e, h);
    if (st == CLT_OK) st = copy_block_groups(e, h);
    if (st == CLT_OK) st = clt_buffer_create(h->cpu, sizeof e->host_groups, "optimizer groups", &h->groups);
    if (st == CLT_OK) st = clt_buffer_create(h->cpu, STATUS * sizeof(float), "step results", &h->status);
    if (st == CLT_OK) st = create_places(e, h);
    if (st != CLT_OK) {
        clt_engine_host_update_destroy(h);
        return st;
    }
    *out = h;
    return CLT_OK;
}

/* The CPU device forgets the stretch that was in the place. */
static void empty(place *p) {
    for (int s = 0; s < CLT_STATES; s++) {
        clt_buffer_destroy(p->element[s]);
        p->element[s] = NULL;
    }
    clt_mark_release(p->there);
    clt_mark_release(p->left);
    clt_mark_release(p->updated);
    p->there = p->left = p->updated = NULL;
}

void clt_engine_host_update_destroy(clt_engine_host_update *h) {
    if (!h) return;
    for (int i = 0; i < PLACES; i++) {
        empty(&h->place[i]);
        clt_buffer_destroy(h->place[i].pinned);
    }
    clt_buffer_destroy(h->groups);
    clt_buffer_destroy(h->block_group);
    clt_buffer_destroy(h->status);
    clt_ops_destroy(h->ops);
    clt_device_close(h->cpu);
    clt_free(h);
}

/* --- a stretch --- */

/* Where elements of a state are in the host's memory while the stretch is in the place. */
static clt_status find_elements(const clt_engine_host_update *h, const clt_slab *slab, int state,
                                const place *p, char **elements) {
    if (!(h->passing >> state & 1)) return clt_slab_host_at(slab, p->x.first, NULL, elements);
    *elements = p->memory + h->row[state];
    return CLT_OK;
}

/* Queues the copies of the passing states in the mask, to the host or back, in the queue in use. */
static clt_status copy_passing(clt_engine *e, clt_slab *total, const place *p, unsigned states,
                               bool to_host) {
    clt_engine_host_update *h = e->host_update;
    for (int s = 0; s < CLT_STATES; s++) {
        const clt_slab *slab = slab_of(e, total, s);
        if (!slab || !(h->passing & states & 1u << s)) continue;
        const clt_ref at = clt_slab_at(slab, p->x.first, NULL);
        const size_t bytes = p->x.count * slab->element_bytes, offset = at.off * slab->element_bytes;
        *(to_host ? &h->traffic.written : &h->traffic.read) += bytes;
        CLT_TRY(to_host ? clt_buffer_send(at.buf, offset, p->memory + h->row[s], bytes)
                        : clt_buffer_fetch(at.buf, offset, p->memory + h->row[s], bytes));
    }
    return CLT_OK;
}

/* Stretch x takes the place, once what was there has left: what the kernels read of it begins to come. The
 * 16-bit weights do not, because every element of them is written. */
static clt_status bring(clt_engine *e, clt_slab *total, place *p, clt_slab_range x) {
    enum { READ = CLT_STATE_ALL & ~(1 << CLT_STATE_COPY) };
    clt_engine_host_update *h = e->host_update;
    clt_device *dev = clt_ops_device(e->ops);
    CLT_TRY(clt_mark_wait(dev, p->left));
    empty(p);
    p->x = x;
    CLT_TRY(clt_device_use(dev, CLT_QUEUE_OUT));
    CLT_TRY(copy_passing(e, total, p, READ, true));
    CLT_TRY(clt_device_mark(dev, &p->there));
    for (int s = 0; s < CLT_STATES; s++) {
        const clt_slab *slab = slab_of(e, total, s);
        char *elements;
        if (!slab) continue;
        CLT_TRY(find_elements(h, slab, s, p, &elements));
        CLT_TRY(clt_buffer_wrap(h->cpu, elements, x.count * slab->element_bytes, "passing state",
                                &p->element[s]));
    }
    return CLT_OK;
}

static clt_ref element(const place *p, clt_state state) {
    return (clt_ref){p->element[state], 0};
}

/* Queues the kernels of a stretch on the CPU device, once what they read is there. */
static clt_status update(clt_engine *e, place *p) {
    clt_engine_host_update *h = e->host_update;
    const clt_optimizer_params params = {
        .chunks = p->x.count / CLT_CHUNK,
        .p = element(p, CLT_STATE_WEIGHTS),
        .g = element(p, CLT_STATE_GRADIENT),
        .m = element(p, CLT_STATE_FIRST),
        .v = element(p, CLT_STATE_SECOND),
        .groups = {h->groups, 0},
        .group_of_block = {h->block_group, p->x.first / 64},
        .status = {h->status, 0},
        .copy = clt_tensor_vector(element(p, CLT_STATE_COPY), e->cfg->precision),
    };
    CLT_TRY(clt_mark_wait(clt_ops_device(e->ops), p->there));
    CLT_TRY(clt_engine_optimizer_step(h->ops, e->cfg->optimizer.kind, &params));
    return clt_device_mark(h->cpu, &p->updated);
}

/* Queues the way of what the kernels have written to the device, once they have. */
static clt_status leave(clt_engine *e, clt_slab *total, place *p) {
    enum { WRITTEN = CLT_STATE_ALL & ~(1 << CLT_STATE_GRADIENT) };
    clt_device *dev = clt_ops_device(e->ops);
    char *weights;
    clt_slab_range part;
    clt_ref to;
    CLT_TRY(clt_mark_wait(e->host_update->cpu, p->updated));
    e->host_update->passed = p->x.first + p->x.count;
    CLT_TRY(clt_device_use(dev, CLT_QUEUE_IN));
    CLT_TRY(copy_passing(e, total, p, WRITTEN, false));
    CLT_TRY(find_elements(e->host_update, e->master, CLT_STATE_WEIGHTS, p, &weights));
    for (uint64_t at = p->x.first; clt_engine_next_wide(e, p->x, &at, &part, &to);)
        CLT_TRY(clt_buffer_fetch(to.buf, to.off * sizeof(float),
                                 weights + (part.first - p->x.first) * sizeof(float),
                                 part.count * sizeof(float)));
    return clt_device_mark(dev, &p->left);
}

/* --- a step --- */

bool clt_engine_host_updates(const clt_engine *e, uint64_t first) {
    const clt_buffer *moment = e->host_update ? clt_slab_at(e->m, first, NULL).buf : NULL;
    return moment && !clt_buffer_is_on_device(moment);
}

clt_status clt_engine_host_update_begin(clt_engine *e) {
    clt_engine_host_update *h = e->host_update;
    float status[STATUS];
    if (clt_device_rehearses(clt_ops_device(e->ops))) return CLT_OK;
    CLT_TRY(clt_engine_host_update_reach(e, UINT64_MAX));
    CLT_TRY(clt_device_finish(clt_ops_device(e->ops)));
    CLT_TRY(clt_buffer_read(e->results, 0, status, sizeof status));
    h->skips = status[STATUS_FINITE] != 1.0f;
    CLT_TRY(clt_buffer_write(h->status, 0, status, sizeof status));
    return clt_buffer_write(h->groups, 0, e->host_groups, (size_t)(e->n_scaled + 1) * sizeof *e->host_groups);
}

/* The next stretch that the host updates. */
static bool next_stretch(clt_engine_stretches *all, clt_slab_range *x) {
    while (clt_engine_next_stretch(all, x))
        if (clt_engine_host_updates(all->e, x->first)) return true;
    return false;
}

/* Stretch number n is in place n % PLACES: the kernels of one are queued, those of the one before are waited
 * for, and the next ones come. */
static clt_status move_on(clt_engine *e) {
    clt_engine_host_update *h = e->host_update;
    clt_slab_range x;
    while (h->more && h->brought < h->left + PLACES - 1 && (h->more = next_stretch(&h->all, &x)))
        CLT_TRY(bring(e, h->total, &h->place[h->brought++ % PLACES], x));
    if (h->updated < h->brought) CLT_TRY(update(e, &h->place[h->updated++ % PLACES]));
    if (h->left + 1 < h->updated || (h->updated == h->brought && h->left < h->updated))
        CLT_TRY(leave(e, h->total, &h->place[h->left++ % PLACES]));
    if (h->left < h->brought) h->passed = CLT_MAX(h->passed, h->place[h->left % PLACES].x.first);
    h->open = h->more || h->left < h->brought;
    return CLT_OK;
}

clt_status clt_engine_host_update_reach(clt_engine *e, uint64_t end) {
    clt_engine_host_update *h = e->host_update;
    const double began = clt_now();
    if (!h || !h->open || h->passed >= end) return CLT_OK;
    while (h->open && h->passed < end) CLT_TRY(move_on(e));
    CLT_TRY(clt_device_use(clt_ops_device(e->ops), CLT_QUEUE_IN));
    CLT_TRY(clt_device_hand_over(clt_ops_device(e->ops), CLT_QUEUE_COMPUTE));
    h->traffic.seconds += clt_now() - began;
    return CLT_OK;
}

clt_status clt_engine_host_update_run(clt_engine *e, clt_slab *total) {
    clt_engine_host_update *h = e->host_update;
    if (clt_device_rehearses(clt_ops_device(e->ops)) || h->skips) return CLT_OK;
    h->all = clt_engine_own_stretches(e, total, h->most);
    h->total = total;
    h->open = h->more = true;
    h->brought = h->updated = h->left = h->passed = 0;
    /* Other ranks wait for what is new. */
    return clt_engine_host_update_reach(e, clt_group_size(e->group) > 1 ? UINT64_MAX : 1);
}

clt_offload_traffic clt_engine_host_update_count(const clt_engine_host_update *h) {
    return h ? h->traffic : (clt_offload_traffic){0};
}
