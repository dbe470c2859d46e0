#include "runtime/train/engine/clt_plan_memory.h"

#include <math.h>

#include "runtime/device/clt_spool.h"
#include "runtime/train/engine/clt_plan.h"

enum { WIDE = 4, NARROW = 2 /* bytes */, GROUP = 64 /* elements with one byte */ };

/* --- the terms --- */

/* Tensors of state that are offloaded: in fp32 the model reads the weights themselves. */
static uint64_t offloaded(const clt_plan_sizes *s) {
    return s->offload ? (uint64_t)(s->moments + s->narrow) : 0;
}

/* Elements of each of these tensors. */
static uint64_t leaving(const clt_plan_sizes *s) {
    return s->owned - s->resident;
}

uint64_t clt_plan_offload_stretch(uint64_t offloaded) {
    return CLT_MIN(offloaded, CLT_PLAN_OFFLOAD_CHUNKS * (uint64_t)CLT_CHUNK);
}

uint64_t clt_plan_update_stretch(uint64_t owned) {
    return CLT_MIN(owned, CLT_PLAN_UPDATE_CHUNKS * (uint64_t)CLT_CHUNK);
}

/* Bytes of a weight that the model reads, as the rank's part has it. */
static uint64_t read_bytes(const clt_plan_sizes *s) {
    return s->narrow ? NARROW : WIDE;
}

/* Elements of each tensor in a place that they pass through. */
static uint64_t stretch(const clt_plan_sizes *s) {
    return clt_plan_offload_stretch(s->host_weights || s->host_gradients ? s->owned : leaving(s));
}

/* Bytes of an element of all that passes through a place. */
static uint64_t passing_bytes(const clt_plan_sizes *s) {
    return WIDE * (offloaded(s) + (s->host_gradients ? 1 : 0)) + (s->host_weights ? read_bytes(s) : 0);
}

uint64_t clt_plan_weights_bytes(const clt_plan_sizes *s) {
    const uint64_t part = s->narrow ? s->owned : s->host_weights ? 0 : s->kept;
    const uint64_t master = (s->offload && s->narrow ? s->resident : part) * WIDE;
    if (s->narrow && s->stage == 0 && !s->offload) return s->total * WIDE;
    if (s->narrow) return master + s->wide * WIDE;
    return s->stage < 3 ? s->total * WIDE : master + s->gathered * WIDE;
}

uint64_t clt_plan_copy_bytes(const clt_plan_sizes *s) {
    if (!s->narrow) return 0;
    return (s->stage < 3 ? s->total : (s->host_weights ? 0 : s->kept) + s->gathered) * NARROW;
}

/* Elements on the device of sums of gradients, or of the places that those in host memory pass through. */
static uint64_t sums(const clt_plan_sizes *s) {
    const uint64_t levels = (uint64_t)s->gradient_sums;
    if (!s->host_gradients) return s->owned * levels;
    return s->part ? CLT_PLAN_PART_PLACES * s->part * levels : CLT_PLAN_SUM_PLACES * s->unit;
}

uint64_t clt_plan_gradients_bytes(const clt_plan_sizes *s) {
    return (s->gradient_slabs ? s->total * (uint64_t)s->gradient_slabs : sums(s) + s->ring) * WIDE;
}

uint64_t clt_plan_optimizer_bytes(const clt_plan_sizes *s) {
    const uint64_t moments = (s->offload ? s->resident : s->owned) * WIDE * (uint64_t)s->moments;
    return moments + CLT_PLAN_OFFLOAD_PLACES * stretch(s) * passing_bytes(s) +
           s->total / GROUP * (s->ratios ? 3 : 1);
}

/* Bytes of state that an update reads, and writes. LAMB's second pass takes the weights again. */
static uint64_t state_step_bytes(const clt_plan_sizes *s) {
    return leaving(s) * WIDE * (offloaded(s) + (s->files && s->ratios && s->narrow ? 1 : 0));
}

uint64_t clt_plan_slots_bytes(const clt_plan_sizes *s) {
    const uint64_t state = s->files && leaving(s) ? WIDE * offloaded(s) : 0,
                   weights = s->file_weights ? read_bytes(s) : 0, sums = s->file_gradients ? WIDE : 0,
                   slot = stretch(s) * (state + weights + sums) + CLT_SCRATCH_ALIGN;
    return state + weights + sums > 0 ? CLT_PLAN_FILE_SLOTS * slot + CLT_SCRATCH_MOST : 0;
}

/* What an element of state that the host updates reads on the device, and what it writes there. */
static uint64_t update_reads(const clt_plan_sizes *s) {
    return (s->host_gradients ? 0 : WIDE) + (s->narrow || s->host_weights ? 0 : WIDE);
}
static uint64_t update_writes(const clt_plan_sizes *s) {
    return s->host_weights ? 0 : read_bytes(s);
}

/* Places that this passes through; weights in fp32 have one for both ways. */
static uint64_t update_places(const clt_plan_sizes *s) {
    const uint64_t bytes = update_reads(s) + (s->narrow ? update_writes(s) : 0);
    return s->host_update ? CLT_PLAN_UPDATE_PLACES * clt_plan_update_stretch(s->total) * bytes : 0;
}

uint64_t clt_plan_host_bytes(const clt_plan_sizes *s) {
    return s->files ? 0 : leaving(s) * WIDE * offloaded(s) + update_places(s);
}

uint64_t clt_plan_host_update_bytes(const clt_plan_sizes *s) {
    const uint64_t state = 2 * WIDE * (uint64_t)(s->moments + 1), copy = s->narrow ? NARROW : 0;
    return s->host_update ? leaving(s) * (state + WIDE + copy) : 0;
}

/* The link carries what is in host memory for the device's updates, and what is on the device for the host's.
 */
clt_plan_update_bytes clt_plan_update_link(const clt_plan_sizes *s) {
    const uint64_t by_host = s->host_update ? leaving(s) : 0, by_device = s->owned - by_host,
                   weights = s->host_weights ? read_bytes(s) : 0, gradients = s->host_gradients ? WIDE : 0,
                   passes = s->host_update ? 0 : state_step_bytes(s);
    return (clt_plan_update_bytes){
        .in = passes + by_device * (weights + gradients) + by_host * update_writes(s),
        .out = passes + by_device * weights + by_host * update_reads(s),
    };
}

uint64_t clt_plan_host_weights_bytes(const clt_plan_sizes *s) {
    return s->host_weights && !s->file_weights ? s->kept * read_bytes(s) : 0;
}

uint64_t clt_plan_file_weights_bytes(const clt_plan_sizes *s) {
    return s->file_weights ? s->kept * read_bytes(s) : 0;
}

/* Elements of a sum that stay in memory although it is in a file. */
static uint64_t edges(const clt_plan_sizes *s) {
    return CLT_MIN(s->edges * CLT_CHUNK, s->owned);
}

uint64_t clt_plan_host_gradients_bytes(const clt_plan_sizes *s) {
    const uint64_t elements = s->file_gradients ? edges(s) : s->owned;
    return s->host_gradients ? elements * (uint64_t)s->gradient_sums * WIDE : 0;
}

uint64_t clt_plan_file_gradients_bytes(const clt_plan_sizes *s) {
    return s->file_gradients ? (s->owned - edges(s)) * (uint64_t)s->gradient_sums * WIDE : 0;
}

/* What leaves the device has room until it is written, so that the host need not wait for it; of sums that is
 * what one unit has. */
uint64_t clt_plan_spool_bytes(const clt_plan_sizes *s) {
    const uint64_t unit = s->part ? s->part * (uint64_t)s->gradient_sums : s->unit,
                   sums = s->file_gradients ? unit * WIDE : 0;
    if (!s->file_weights && !s->file_gradients && !s->file_input) return 0;
    return clt_spool_pinned(CLT_PLAN_FILE_SLOTS * (uint64_t)CLT_SCRATCH_MOST + sums +
                            CLT_PLAN_SPOOL_INPUTS * s->file_input);
}

uint64_t clt_plan_resident_bytes(const clt_plan_sizes *s) {
    return s->resident * WIDE * offloaded(s);
}

uint64_t clt_plan_file_bytes(const clt_plan_sizes *s) {
    return s->files ? leaving(s) * WIDE * offloaded(s) : 0;
}

clt_plan_update_bytes clt_plan_update_files(const clt_plan_sizes *s) {
    const uint64_t state = s->files ? state_step_bytes(s) : 0, weights = clt_plan_file_weights_bytes(s),
                   total = s->file_gradients ? (s->owned - edges(s)) * WIDE : 0;
    return (clt_plan_update_bytes){.in = state + weights + total, .out = state + weights};
}

/* --- units --- */

/* Elements of each unit; *n of them. */
static uint64_t *unit_elements(const clt_config *c, const clt_slab_table *t, int *n) {
    clt_model_unit *unit;
    *n = clt_model_units(c->model, t, &unit);
    uint64_t *size = clt_calloc((size_t)*n, sizeof *size);
    for (int u = 0; u < *n; u++) {
        const uint64_t first = u ? t->entry[unit[u].first].offset : 0;
        size[u] = (u + 1 < *n ? t->entry[unit[u + 1].first].offset : t->total) - first;
    }
    clt_free(unit);
    return size;
}

uint64_t clt_plan_places(const uint64_t *size, int n, int blocks) {
    uint64_t most = 0;
    for (int u = 1; u < n - 1; u++) most = CLT_MAX(most, size[u]);
    return size[0] + (n > 1 ? size[n - 1] : 0) + most * (uint64_t)CLT_MIN(blocks, CLT_MAX(n - 2, 0));
}

uint64_t clt_plan_largest_part(const clt_shards *s, int rank, const uint64_t *start, int n) {
    uint64_t most = 0;
    for (int u = 0; u < n; u++) {
        const clt_slab_range unit = {start[u], start[u + 1] - start[u]};
        uint64_t part = 0;
        for (int b = 0; b < s->buckets; b++)
            part += clt_slab_range_common(clt_shards_range(s, b, rank), unit).count;
        most = CLT_MAX(most, part);
    }
    return most;
}

/* Tensors that the model reads in fp32, with the padding between neighbours. */
static uint64_t wide_elements(const clt_config *c, const clt_model_shape *shape, const clt_slab_table *t) {
    uint64_t sum = 0;
    for (int i = 0; i < t->n; i++) {
        const clt_slab_entry *x = &t->entry[i];
        if (!clt_model_reads_wide(c->model, shape, t, i)) continue;
        if (i + 1 < t->n && clt_model_reads_wide(c->model, shape, t, i + 1))
            sum += x[1].offset - x->offset;
        else
            sum += CLT_MIN(CLT_ROUND_UP(x->count, (uint64_t)GROUP), t->total - x->offset);
    }
    return sum;
}

/* Sets the sizes that depend on units. */
static void find_units(const clt_config *c, const clt_plan *p, const clt_slab_table *t, clt_plan_sizes *s) {
    const clt_model_shape shape = clt_plan_shape(c, p, true);
    const int ahead = c->shard.limit_gathers ? CLT_PLAN_GATHER_AHEAD : CLT_PLAN_GATHER_FAR;
    int n;
    uint64_t *size = unit_elements(c, t, &n);
    s->wide = wide_elements(c, &shape, t);
    s->ring = clt_plan_places(size, n, CLT_PLAN_GRADIENT_RING);
    s->gathered = clt_plan_places(size, n, ahead + CLT_PLAN_GATHER_USED);
    uint64_t at = 0;
    for (int u = 0; u < n; at += size[u++]) {
        s->unit = CLT_MAX(s->unit, size[u]);
        s->edges += at % CLT_CHUNK != 0;
    }
    clt_free(size);
}

/* --- of a configuration --- */

/* Of all ranks. */
static int most_gradient_slabs(const clt_config *c, const clt_plan *p) {
    const clt_lane_split split = clt_plan_split(p);
    int most = 1;
    for (int r = 0; r < p->ranks; r++)
        most =
            CLT_MAX(most, clt_lane_slabs_needed(p->lanes, clt_lane_begin(&split, r),
                                                clt_lane_begin(&split, r + 1), c->global_train_batch_size));
    return most;
}

static uint64_t most_owned(const clt_shards *s) {
    uint64_t most = 0;
    for (int r = 0; r < s->ranks; r++) most = CLT_MAX(most, clt_shards_owned(s, r));
    return most;
}

/* Of all ranks. */
static uint64_t most_of_a_unit(const clt_config *c, const clt_slab_table *t, const clt_shards *s) {
    uint64_t most = 0;
    int n;
    uint64_t *size = unit_elements(c, t, &n), *start = clt_calloc((size_t)n + 1, sizeof *start);
    for (int u = 0; u < n; u++) start[u + 1] = start[u] + size[u];
    for (int r = 0; r < s->ranks; r++) most = CLT_MAX(most, clt_plan_largest_part(s, r, start, n));
    clt_free(start);
    clt_free(size);
    return most;
}

static clt_status find_shards(const clt_config *c, const clt_plan *p, const clt_slab_table *t,
                              clt_plan_sizes *out) {
    clt_shards s;
    CLT_TRY(clt_plan_shards(p, t, &s));
    if (out->host_gradients && p->ranks > 1) out->part = most_of_a_unit(c, t, &s);
    const clt_shards keep = clt_shards_of_group(&s, p->shard_ranks);
    out->owned = p->stage > 0 ? most_owned(&s) : t->total;
    out->kept = most_owned(&keep);
    clt_shards_free(&s);
    return CLT_OK;
}

static bool keeps_whole_gradients(const clt_config *c, const clt_plan *p, int64_t microbatch) {
    return p->stage < 2 || (p->ranks == 1 && !c->shard.gradients) || p->whole_gradients ||
           clt_plan_lane_is_split(c, p, microbatch);
}

/* The split that gradients are reduced by. Without whole gradients lanes are dealt out, and with numerics
 * fast every microbatch is added to one sum, in any order. */
static clt_lane_split reduced_split(const clt_config *c, const clt_plan *p, bool whole) {
    clt_lane_split split = clt_plan_split(p);
    split.dealt = !whole;
    split.chain = !whole && c->numerics == CLT_FAST;
    return split;
}

static clt_status reduction_of(const clt_config *c, const clt_plan *p, const clt_slab_table *t,
                               clt_device_type type, int64_t microbatch, uint64_t *bytes) {
    const clt_lane_split split = reduced_split(c, p, keeps_whole_gradients(c, p, microbatch));
    clt_shards s;
    CLT_TRY(clt_plan_shards(p, t, &s));
    *bytes = clt_reduce_plan_bytes(&s, &split, p->per_host, c->reduce_bf16, type == CLT_DEVICE_CPU);
    clt_shards_free(&s);
    return CLT_OK;
}

/* What is not offloaded: the rest of the configuration's ratio, or what exceeds the host's memory. */
static uint64_t resident_elements(const clt_config *c, const clt_plan *p, const clt_plan_sizes *s) {
    const double ratio = c->shard.offload_ratio;
    const uint64_t chunks = CLT_CEIL_DIV(s->owned, (uint64_t)CLT_CHUNK), bytes = WIDE * offloaded(s),
                   room = p->host_room / (uint64_t)p->per_host,
                   taken = s->inputs + clt_plan_host_weights_bytes(s) + clt_plan_host_gradients_bytes(s) +
                           clt_plan_slots_bytes(s) + clt_plan_spool_bytes(s) + update_places(s);
    uint64_t takes = chunks;
    if (bytes == 0) return 0;
    if (!isnan(ratio))
        takes = (uint64_t)ceil(ratio * (double)chunks);
    else if (!s->files && p->host_room)
        takes = CLT_MIN(chunks, (room - CLT_MIN(room, taken)) / bytes / CLT_CHUNK);
    return s->owned - CLT_MIN(takes * CLT_CHUNK, s->owned);
}

static clt_status sizes_of(const clt_config *c, const clt_plan *p, const clt_slab_table *t,
                           int64_t microbatch, const clt_model_memory *model, clt_plan_sizes *out) {
    const bool whole = keeps_whole_gradients(c, p, microbatch);
    const clt_lane_split split = reduced_split(c, p, whole);
    clt_plan_sizes s = {.stage = p->stage,
                        .moments = clt_optimizer_of(c->optimizer.kind)->moments,
                        .ratios = c->optimizer.kind == CLT_OPTIMIZER_LAMB,
                        .narrow = c->precision != CLT_F32,
                        .offload = c->shard.offload != CLT_OFFLOAD_NONE,
                        .files = c->shard.offload == CLT_OFFLOAD_FILE,
                        .host_update = c->shard.host_update,
                        .host_weights = c->shard.parameters && p->stage >= 3,
                        .host_gradients = c->shard.gradients && !whole,
                        .total = t->total,
                        .inputs = model->host,
                        .file_input = model->file ? model->input : 0};
    s.file_weights = s.host_weights && c->shard.parameters == CLT_OFFLOAD_FILE;
    s.file_gradients = s.host_gradients && c->shard.gradients == CLT_OFFLOAD_FILE;
    find_units(c, p, t, &s);
    s.gradient_slabs = whole ? most_gradient_slabs(c, p) : 0;
    s.gradient_sums = whole ? 0 : clt_reduce_levels(&split);
    CLT_TRY(find_shards(c, p, t, &s));
    s.resident = resident_elements(c, p, &s);
    *out = s;
    return CLT_OK;
}

/* A tensor lies in one buffer of a slab; the place of a unit is one buffer. */
static uint64_t largest_buffer(const clt_plan_sizes *s, const clt_slab_table *t, uint64_t of_model) {
    uint64_t most = of_model;
    for (int i = 0; i < t->n; i++) most = CLT_MAX(most, t->entry[i].count * WIDE);
    most = CLT_MAX(most, s->part * (uint64_t)s->gradient_sums * WIDE);
    if (!s->gradient_slabs) return CLT_MAX(most, s->unit * WIDE);
    return s->stage < 3 ? most : CLT_MAX(most, s->unit * (uint64_t)(s->narrow ? NARROW : WIDE));
}

static clt_status memory_of(const clt_config *c, const clt_plan *p, const clt_slab_table *t,
                            clt_device_type type, int64_t microbatch, clt_plan_memory *m) {
    clt_plan_sizes s;
    CLT_TRY(sizes_of(c, p, t, microbatch, &m->model, &s));
    CLT_TRY(reduction_of(c, p, t, type, microbatch, &m->reduction));
    m->elements = t->total;
    m->gradient_slabs = s.gradient_slabs;
    m->gradient_sums = s.gradient_sums;
    m->weights = clt_plan_weights_bytes(&s);
    m->copy = clt_plan_copy_bytes(&s);
    m->gradients = clt_plan_gradients_bytes(&s);
    m->optimizer = clt_plan_optimizer_bytes(&s);
    m->host = clt_plan_host_bytes(&s);
    m->host_weights = clt_plan_host_weights_bytes(&s);
    m->host_gradients = clt_plan_host_gradients_bytes(&s);
    m->update = clt_plan_update_link(&s);
    m->update_touched = clt_plan_host_update_bytes(&s);
    m->resident = s.resident;
    m->resident_bytes = clt_plan_resident_bytes(&s);
    m->slots = clt_plan_slots_bytes(&s);
    m->spool = clt_plan_spool_bytes(&s);
    m->file = clt_plan_file_bytes(&s);
    m->file_weights = clt_plan_file_weights_bytes(&s);
    m->file_gradients = clt_plan_file_gradients_bytes(&s);
    m->update_files = clt_plan_update_files(&s);
    m->total = m->weights + m->copy + m->gradients + m->optimizer + m->reduction + m->model.total;
    m->largest = largest_buffer(&s, t, m->model.largest);
    return CLT_OK;
}

clt_status clt_plan_memory_of(const clt_config *c, const clt_plan *p, clt_device_type type,
                              int64_t microbatch, clt_plan_memory *out) {
    clt_slab_table t = {0};
    clt_plan_memory m = {0};
    clt_model_shape shape = clt_plan_shape(c, p, true);
    shape.microbatch = microbatch;
    CLT_TRY(clt_model_plan(c->model, &shape, type, &m.model));
    clt_status st = clt_model_table(c->model, &t);
    if (st == CLT_OK) st = memory_of(c, p, &t, type, microbatch, &m);
    clt_slab_table_free(&t);
    if (st == CLT_OK) *out = m;
    return st;
}
