/* clt_engine_offload: what the optimizer reads and writes, in the host's memory or in files (cltrain.offload,
 * cltrain.offload_parameters, cltrain.offload_gradients).
 *
 * The slabs of moments, and in 16-bit runs that of the fp32 weights, are pinned host memory, or a file, which
 * kernels cannot use; so may be the slabs of the weights that the model reads and of the total gradient.
 * Their elements pass through a ring of places on the device, stretch by stretch: while kernels
 * work on one stretch, the next one comes in and the one before it leaves, each in a queue of its own.
 * Between a file and the device they pass through pinned memory, too (clt_engine_file_ring.h).
 *
 *     CLT_TRY(clt_offload_begin(o, states, next, ctx));
 *     for each stretch x, of at most clt_offload_most(o, states) elements, in one piece of each slab:
 *         CLT_TRY(clt_offload_bring(o, states, x));
 *         ... kernels on clt_offload_at(o, state, slab, x.first) ...
 *         CLT_TRY(clt_offload_leave(o, states that have changed, x));
 *     CLT_TRY(clt_offload_end(o));
 *
 * Parts of the slabs may be on the device (clt_slab_create_pinned): their stretches stay where they are, of
 * any length. Without offload `o` is NULL: all of these do nothing, and clt_offload_at is the place in the
 * slab. With host memory nothing here waits on the host; with files bring waits for the file and end for the
 * device. Host functions that read the slabs (clt_slab_read) wait for what is queued. */
#ifndef CLT_ENGINE_OFFLOAD_H
#define CLT_ENGINE_OFFLOAD_H

#include "runtime/device/clt_slab.h"

/* The state of an optimizer, in the order of clt_engine_parts, the 16-bit weights and the total gradient. The
 * 16-bit weights are brought, too, although kernels only write them: a step that is skipped writes nothing.
 */
typedef enum {
    CLT_STATE_WEIGHTS,
    CLT_STATE_FIRST,
    CLT_STATE_SECOND,
    CLT_STATE_COPY,
    CLT_STATE_GRADIENT,
    CLT_STATES
} clt_state;
enum { CLT_STATE_ALL = (1 << CLT_STATES) - 1 };

typedef struct clt_offload_ring clt_offload_ring;

/* slab[s]: the slab of state s, borrowed; NULL: this one is on the device, or not in this run. offloaded: the
 * most elements of one of them that are not on the device. file: where those are, borrowed, that are not
 * pinned; NULL: all are pinned. Errors of clt_buffer_create and clt_buffer_create_pinned. */
clt_status clt_offload_create(clt_device *dev, clt_slab *const slab[CLT_STATES], uint64_t offloaded,
                              clt_scratch *file, clt_offload_ring **out);
void clt_offload_destroy(clt_offload_ring *o); /* NULL is allowed */

bool clt_offload_has(const clt_offload_ring *o, clt_state state);
/* Elements of the longest stretch of the states in the mask `states` that is not on the device; UINT64_MAX:
 * all are. */
uint64_t clt_offload_most(const clt_offload_ring *o, unsigned states);

/* The stretches of a pass one after the other, of whole chunks; false: there are no more. */
typedef bool (*clt_offload_next)(void *ctx, clt_slab_range *x);

/* Before the first stretch of a pass: what has left in earlier passes is in the host's memory before anything
 * comes in. The pass brings the states in the mask `states`, and the stretches that `next` gives, which read
 * files ahead of it; NULL: files are not read ahead, and stretches may be of any elements if none changes.
 * ctx is used until clt_offload_end. */
clt_status clt_offload_begin(clt_offload_ring *o, unsigned states, clt_offload_next next, void *ctx);
/* Queues bringing elements x of the states in the mask `states` to the next place; the compute queue waits
 * for them. The mask has all states that the stretch reads or writes. */
clt_status clt_offload_bring(clt_offload_ring *o, unsigned states, clt_slab_range x);
/* Where the stretch that begins with element `first` is now. `slab` is the state's slab; NULL gives
 * clt_ref_none. */
clt_ref clt_offload_at(const clt_offload_ring *o, clt_state state, const clt_slab *slab, uint64_t first);
/* Queues the way back of the states in the mask `changed`, behind what the compute queue has so far. The
 * place is free for another stretch after it. */
clt_status clt_offload_leave(clt_offload_ring *o, unsigned changed, clt_slab_range x);
/* After the last stretch of a pass. */
clt_status clt_offload_end(clt_offload_ring *o);

/* What passes have moved from and to files, or host memory. */
typedef struct {
    uint64_t read, written; /* bytes */
    double seconds;         /* that the passes took; with host memory, of passes that are timed */
    double waited;          /* of them, seconds without anything to do but wait for the files */
} clt_offload_traffic;
clt_offload_traffic clt_offload_count(const clt_offload_ring *o); /* zeros without offload; o may be NULL */
/* Passes wait for the device at their beginning and at their end, so that their seconds are theirs alone. For
 * measurements: what overlaps with a pass, does not. o may be NULL. */
void clt_offload_time(clt_offload_ring *o, bool timed);

#endif
