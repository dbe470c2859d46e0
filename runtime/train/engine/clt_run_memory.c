/* How much device memory a run takes, and the microbatch that fits: all from the configuration, before the
 * run. */
#include "runtime/train/engine/clt_engine.h"

int clt_run_lanes(const clt_config *c, int ranks) {
    int lanes = 1;
    if (c->numerics == CLT_EXACT) return (int)c->exact_lanes;
    if (c->n_lanes_per_rank == ranks) {
        lanes = 0;
        for (int r = 0; r < ranks; r++) lanes += c->lanes_per_rank[r];
    }
    while (lanes < ranks) lanes *= 2;
    return lanes;
}

clt_lane_split clt_run_split(const clt_config *c, int lanes, int ranks) {
    clt_lane_split s = {.lanes = lanes, .ranks = ranks};
    int sum = 0;
    for (int r = 0; r < c->n_lanes_per_rank; r++) sum += c->lanes_per_rank[r];
    if (c->n_lanes_per_rank == ranks && sum == lanes) s.count = c->lanes_per_rank;
    return s;
}

const char *clt_recompute_text(clt_recompute r) {
    static const char *const text[] = {"", ", norms recomputed", ", activations recomputed"};
    return text[r];
}

clt_mpt_shape clt_run_shape(const clt_config *c, int64_t microbatch, bool training) {
    return (clt_mpt_shape){.microbatch = microbatch,
                           .seq = c->max_seq_len,
                           .training = training,
                           .recompute = c->recompute,
                           .numerics = c->numerics,
                           .logits_bytes = c->logits_bytes,
                           .type = c->precision};
}

/* The busiest rank: most gradient slabs. */
static int most_gradient_slabs(const clt_config *c, int ranks) {
    int lanes = clt_run_lanes(c, ranks), most = 1;
    clt_lane_split split = clt_run_split(c, lanes, ranks);
    for (int r = 0; r < ranks; r++)
        most =
            CLT_MAX(most, clt_lane_slabs_needed(lanes, clt_lane_begin(&split, r),
                                                clt_lane_begin(&split, r + 1), c->global_train_batch_size));
    return most;
}

static int64_t most_samples_of_lane(const clt_config *c, int ranks) {
    return CLT_CEIL_DIV(c->global_train_batch_size, clt_run_lanes(c, ranks));
}

clt_status clt_run_memory_plan(const clt_config *c, clt_device_type type, int ranks, int64_t microbatch,
                               clt_run_memory *out) {
    clt_slab_table t = {0};
    clt_run_memory m = {.microbatch = microbatch};
    clt_mpt_shape shape = clt_run_shape(c, microbatch, true);
    CLT_TRY(clt_mpt_plan(&c->model, &shape, type, &m.model));
    CLT_TRY(clt_mpt_table(&c->model, &t));
    m.gradient_slabs = most_gradient_slabs(c, ranks);
    m.weights = t.total * 4;
    if (c->precision != CLT_F32) m.copy = t.total * clt_dtype_bytes(c->precision);
    m.gradients = m.weights * (uint64_t)m.gradient_slabs;
    m.optimizer = m.weights * (c->optimizer.kind == CLT_OPTIMIZER_ADAMW ? 2 : 1) + t.total / 64;
    clt_lane_split split = clt_run_split(c, clt_run_lanes(c, ranks), ranks);
    m.reduction = clt_reduce_plan_bytes(&t, &split, c->reduce_bf16);
    m.total = m.weights + m.copy + m.gradients + m.optimizer + m.reduction + m.model.total;
    m.largest = m.model.largest;
    for (int i = 0; i < t.n; i++) m.largest = CLT_MAX(m.largest, t.entry[i].count * 4);
    clt_slab_table_free(&t);
    *out = m;
    return CLT_OK;
}

uint64_t clt_run_capacity(const clt_device_facts *d, int ranks_on_device) {
    /* What a driver reports is not all there to take: leave a tenth. */
    return d->global_mem / 10 * 9 / (uint64_t)CLT_MAX(ranks_on_device, 1);
}

typedef struct {
    clt_device_type type;
    int ranks;
    uint64_t capacity, max_alloc;
} room;

static bool fits(const clt_config *c, const room *r, int64_t microbatch, clt_run_memory *m) {
    return clt_run_memory_plan(c, r->type, r->ranks, microbatch, m) == CLT_OK && m->total <= r->capacity &&
           m->largest <= r->max_alloc;
}

/* Without the buffer of logits, of which more samples may need less (its groups are even): what is left
 * grows. */
static bool fits_without_logits(const clt_config *c, const room *r, int64_t microbatch) {
    clt_run_memory m;
    return clt_run_memory_plan(c, r->type, r->ranks, microbatch, &m) == CLT_OK &&
           m.total - m.model.logits <= r->capacity;
}

/* The largest microbatch up to `most` that fits, 0 if none does. */
static int64_t largest_that_fits(const clt_config *c, const room *r, int64_t most) {
    clt_run_memory m;
    int64_t least = 0;
    while (least < most) {
        const int64_t middle = most - (most - least) / 2;
        if (fits_without_logits(c, r, middle))
            least = middle;
        else
            most = middle - 1;
    }
    while (least > 0 && !fits(c, r, least, &m)) least--;
    return least;
}

/* One change to the configuration that would make the run fit, the mildest first, for the message; NULL: none
 * of these would. */
static char *what_would_fit(const clt_config *cfg, const room *r, int64_t microbatch) {
    clt_config c = *cfg;
    clt_run_memory m;
    char b[32];
    microbatch = largest_that_fits(&c, r, microbatch - 1);
    if (microbatch && fits(&c, r, microbatch, &m))
        return clt_format("device_train_microbatch_size: %lld (%s)", (long long)microbatch,
                          clt_human_bytes((double)m.total, b));
    c.recompute = CLT_RECOMPUTE_NORMS;
    if (cfg->recompute < c.recompute && fits(&c, r, 1, &m))
        return clt_format("cltrain.recompute: norms with microbatch 1 (%s)",
                          clt_human_bytes((double)m.total, b));
    c.recompute = CLT_RECOMPUTE_BLOCKS;
    if (cfg->recompute < c.recompute && fits(&c, r, 1, &m))
        return clt_format("cltrain.recompute: blocks with microbatch 1 (%s)",
                          clt_human_bytes((double)m.total, b));
    for (c.max_seq_len /= 2; c.max_seq_len >= 64; c.max_seq_len /= 2)
        if (fits(&c, r, 1, &m))
            return clt_format("max_seq_len: %lld with cltrain.recompute: blocks and microbatch 1 (%s)",
                              (long long)c.max_seq_len, clt_human_bytes((double)m.total, b));
    c.max_seq_len = cfg->max_seq_len;
    while (--c.model.n_layers >= 1)
        if (fits(&c, r, 1, &m))
            return clt_format("model.n_layers: %lld with cltrain.recompute: blocks and microbatch 1 (%s)",
                              (long long)c.model.n_layers, clt_human_bytes((double)m.total, b));
    return NULL;
}

static clt_status too_big(const clt_config *c, const room *r, const clt_run_memory *m) {
    char need[32], have[32], *advice = what_would_fit(c, r, m->microbatch);
    const char *lead = advice ? "; what would fit: "
                              : "; no change of microbatch, sequence or layers makes "
                                "it fit: use a smaller model or a larger device";
    clt_status st;
    if (m->largest > r->max_alloc)
        st = clt_error(CLT_NO_MEMORY, "the largest buffer needs %s, the device allows %s at a time%s%s",
                       clt_human_bytes((double)m->largest, need), clt_human_bytes((double)r->max_alloc, have),
                       lead, advice ? advice : "");
    else
        st = clt_error(CLT_NO_MEMORY,
                       "the run needs %s of device memory with microbatch %lld, %s are free%s%s",
                       clt_human_bytes((double)m->total, need), (long long)m->microbatch,
                       clt_human_bytes((double)r->capacity, have), lead, advice ? advice : "");
    clt_free(advice);
    return st;
}

void clt_run_choose_recompute(clt_config *c, clt_device_type type, int ranks, uint64_t capacity,
                              uint64_t max_alloc, clt_run_memory *m) {
    const room quarter = {type, ranks, capacity / 4, max_alloc};
    clt_config kept = *c;
    clt_run_memory more;
    kept.recompute = CLT_RECOMPUTE_NONE;
    if (!c->recompute_open || type != CLT_DEVICE_GPU || !fits(&kept, &quarter, m->microbatch, &more)) return;
    c->recompute = kept.recompute;
    *m = more;
}

clt_status clt_run_choose_microbatch(clt_config *c, clt_device_type type, int ranks, uint64_t capacity,
                                     uint64_t max_alloc, clt_run_memory *out) {
    /* A fixed microbatch above what a lane holds is lowered, as Composer lowers it to the device batch; and a
     * product has no more rows than an int counts. */
    const int64_t wanted = c->device_train_microbatch_size,
                  most = CLT_MIN(most_samples_of_lane(c, ranks), CLT_MAX(INT32_MAX / c->max_seq_len, 1));
    const room r = {type, ranks, capacity, max_alloc};
    clt_run_memory m = {0};
    if (c->recompute_open) c->recompute = CLT_RECOMPUTE_NORMS; /* also where it was chosen before */
    const bool open = c->precision != CLT_F32 && c->numerics == CLT_FAST;
    c->logits_bytes = open ? CLT_MPT_LOGITS_LEAST : 0;
    const int64_t mb = wanted ? CLT_MIN(wanted, most) : CLT_MAX(largest_that_fits(c, &r, most), 1);
    c->logits_bytes = 0;
    if (open && !fits(c, &r, mb, &m)) c->logits_bytes = CLT_MPT_LOGITS_LEAST;
    CLT_TRY(clt_run_memory_plan(c, type, ranks, mb, &m));
    if (m.total <= capacity && m.largest <= max_alloc) {
        *out = m;
        clt_run_choose_recompute(c, type, ranks, capacity, max_alloc, out);
        return CLT_OK;
    }
    *out = m;
    return too_big(c, &r, &m);
}
