/* clt_engine_file_ring: what the optimizer reads and writes, between a file and pinned memory
 * (cltrain.offload: file and so on).
 *
 * The slabs are in a file (clt_slab_create_in_file), or parts of them. Stretches pass through a few slots of
 * pinned memory, from which the ring of clt_engine_offload copies them to the device and back. While kernels
 * work on one stretch, the file's reads of those that follow and its writes of those before go on. The device
 * cannot start transfers of files, so the host waits here: for what is read, and at the end of a pass for
 * kernels.
 */
#ifndef CLT_ENGINE_FILE_RING_H
#define CLT_ENGINE_FILE_RING_H

#include "runtime/train/engine/clt_engine_offload.h"

typedef struct clt_file_ring clt_file_ring;

/* slab[s]: in `file`, in part at least, borrowed; NULL: not there. most: elements of the longest stretch,
 * whole chunks. Errors of clt_buffer_create_pinned. */
clt_status clt_file_ring_create(clt_device *dev, clt_scratch *file, clt_slab *const slab[CLT_STATES],
                                uint64_t most, clt_file_ring **out);
void clt_file_ring_destroy(clt_file_ring *r); /* waits for transfers; NULL is allowed */

/* As clt_offload_begin. */
clt_status clt_file_ring_begin(clt_file_ring *r, unsigned states, clt_offload_next next, void *ctx);
/* Waits until stretch x, the next one of the pass, is in a slot. */
clt_status clt_file_ring_bring(clt_file_ring *r, clt_slab_range x);
/* The elements of a state of that stretch, until clt_file_ring_leave; NULL: the file does not have them. */
char *clt_file_ring_at(const clt_file_ring *r, clt_state state);
/* The states in the mask `changed` go into the file, and the slot is free for another stretch, behind what
 * the queue in use has so far. */
clt_status clt_file_ring_leave(clt_file_ring *r, unsigned changed);
/* Waits until everything that has changed is on its way into the file. */
clt_status clt_file_ring_end(clt_file_ring *r);

/* Of all passes so far. */
clt_offload_traffic clt_file_ring_traffic(const clt_file_ring *r);

#endif
