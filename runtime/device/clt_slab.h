/* clt_slab: flat storage of all parameters; gradients and optimizer state are slabs with the same table.
 *
 * One table lists name, shape and offset of every tensor. It does not depend on the device or the number of
 * ranks: a tensor of at least 65,536 elements starts at a chunk border (a multiple of 65,536 elements),
 * a smaller one at the next multiple of 64; padding is +0. Shards (clt_shards.h) and checkpoints follow from
 * the same table.
 *
 * On a device the slab is cut into pieces, each of which lies in one buffer. A whole slab is cut only at a
 * chunk border where a tensor starts, so no tensor lies in two pieces, and each piece is one buffer. A piece
 * has at most `piece_bytes` unless the distance between two possible cuts is larger: then that stretch, a
 * large tensor and the small ones after it, is one piece. The slab of a shard has only what one rank owns
 * (clt_shards.h), packed into few buffers; the rest of it are pieces without a buffer, called holes.
 *
 * Elements are fp32, or 16 bits wide in a narrow slab: a copy of the weights that matrix units read. A slab
 * is used by the thread that uses its device. */
#ifndef CLT_SLAB_H
#define CLT_SLAB_H

#include "runtime/device/clt_device.h"

enum { CLT_CHUNK = 65536, CLT_MAX_DIMS = 4 };

typedef struct {
    char *name;
    int dims;
    int64_t shape[CLT_MAX_DIMS];
    uint64_t count;  /* elements */
    uint64_t offset; /* first element in the slab */
} clt_slab_entry;

typedef struct {
    clt_slab_entry *entry;
    int n, cap;
    uint64_t total; /* elements; finish makes it a multiple of CLT_CHUNK (clbench also has other totals) */
} clt_slab_table;

/* A table starts from {0}. Add the tensors, which are laid out in the order of the calls, then call finish
 * once. add returns the index of the new entry and copies name and shape; dims must be 1 ... CLT_MAX_DIMS and
 * each size at least 1, which is not checked. */
int clt_slab_table_add(clt_slab_table *t, const char *name, int dims, const int64_t *shape);
/* Rounds `total` up to whole chunks; nothing may be added after it. */
void clt_slab_table_finish(clt_slab_table *t);
/* The index of the entry with this name; -1: there is none. */
int clt_slab_table_find(const clt_slab_table *t, const char *name);
/* Frees the entries; the table is {0} after it. No slab may use the table any more. */
void clt_slab_table_free(clt_slab_table *t);

/* Elements [first, first + count) of a slab. */
typedef struct {
    uint64_t first, count;
} clt_slab_range;

/* What is in both; its count may be 0. */
static inline clt_slab_range clt_slab_range_common(clt_slab_range a, clt_slab_range b) {
    const uint64_t first = CLT_MAX(a.first, b.first), end = CLT_MIN(a.first + a.count, b.first + b.count);
    return (clt_slab_range){first, end > first ? end - first : 0};
}

typedef struct {
    const clt_slab_table *table; /* borrowed: must outlive the slab */
    clt_buffer **piece;          /* n buffers; NULL: a hole, whose elements are not on this rank */
    uint64_t *start;             /* n + 1 offsets: piece i holds elements start[i] ... start[i + 1] - 1 */
    uint64_t *origin;            /* n: the element of piece[i] that holds element start[i]; 0 in a hole */
    int n;                       /* pieces */
    uint32_t element_bytes;      /* 4, or 2 in a narrow slab */
    clt_buffer **buffer;         /* the buffers that belong to the slab, each once */
    int buffers;
} clt_slab;

/* Creates a slab with all elements +0 (the clearing is queued). t must be finished. piece_bytes 0: 1 GiB, or
 * the device's largest allocation if that is smaller. `name` is that of every buffer, for the memory table.
 * CLT_FAIL if the table is empty; CLT_NO_MEMORY if a piece exceeds the device's largest allocation (the
 * message names its first tensor) or the device's memory; other errors of clt_buffer_create. */
clt_status clt_slab_create(clt_device *dev, const clt_slab_table *t, uint64_t piece_bytes, const char *name,
                           clt_slab **out);
/* Creates a slab in the caller's memory: `host` has table->total elements of element_bytes (4 or 2), is page
 * aligned and must outlive the slab. It has the pieces of clt_slab_create with piece_bytes 0. The contents of
 * the memory stay. Errors as there, and of clt_buffer_wrap. */
clt_status clt_slab_create_in(clt_device *dev, const clt_slab_table *t, void *host, uint32_t element_bytes,
                              const char *name, clt_slab **out);
struct clt_shards;
/* Creates a slab that has only what `rank` owns, with all bits 0. Buffers have at most 1 GiB, or the device's
 * largest allocation if that is smaller, and no padding; a range may be cut at a chunk border where a buffer
 * ends. Slabs of the same table, shards, rank and device have the same pieces, whatever element_bytes (4 or
 * 2). A rank that owns nothing gets a slab of one hole. `shards` is not kept. CLT_FAIL: `shards` belongs to
 * another table; errors of clt_buffer_create. */
clt_status clt_slab_create_shard(clt_device *dev, const clt_slab_table *t, const struct clt_shards *shards,
                                 int rank, uint32_t element_bytes, const char *name, clt_slab **out);
/* The same with these n ranges, ascending, instead of those of a rank, for tensors that operations read: a
 * range starts and ends at the border of a tensor, and each tensor lies in one buffer, as in a whole slab.
 * CLT_NO_MEMORY also if a tensor exceeds the device's largest allocation. */
clt_status clt_slab_create_ranges(clt_device *dev, const clt_slab_table *t, const clt_slab_range *range,
                                  int n, uint32_t element_bytes, const char *name, clt_slab **out);
/* Elements of these n ranges, ascending, in pinned host memory (clt_buffer_create_pinned), which kernels
 * cannot use. They are cut as those of a shard. The first `resident` elements of the ranges, whole chunks,
 * are on the device, in buffers of their own. */
clt_status clt_slab_create_pinned(clt_device *dev, const clt_slab_table *t, const clt_slab_range *range,
                                  int n, uint64_t resident, uint32_t element_bytes, const char *name,
                                  clt_slab **out);
/* The same in a file (clt_buffer_create_in_file), which must outlive the slab. */
clt_status clt_slab_create_in_file(clt_device *dev, const clt_slab_table *t, const clt_slab_range *range,
                                   int n, uint64_t resident, uint32_t element_bytes, clt_scratch *file,
                                   const char *name, clt_slab **out);
/* One slab of two that have the same table and element_bytes, and no element in common: it has the elements
 * and the buffers of both, which are destroyed. */
clt_slab *clt_slab_join(clt_slab *a, clt_slab *b);
/* A slab of n pieces, all of them holes: piece i is for elements start[i] ... start[i + 1] - 1, from 0 to the
 * table's total. The caller puts buffers into it, which stay his, and takes them out. */
clt_slab *clt_slab_create_holes(const clt_slab_table *t, const uint64_t *start, int n,
                                uint32_t element_bytes);
/* Creates a slab of 16-bit elements with the table, the pieces and the holes of `like`, which may be
 * destroyed before it: piece i of both slabs holds the same elements. All bits are 0. */
clt_status clt_slab_create_narrow(clt_device *dev, const clt_slab *like, const char *name, clt_slab **out);
void clt_slab_destroy(clt_slab *s); /* NULL is allowed */
/* The place of piece i's first element; clt_ref_none in a hole. */
static inline clt_ref clt_slab_part(const clt_slab *s, int i) {
    return (clt_ref){s->piece[i], s->origin[i]};
}
/* The place of the first element of the tensor with this index in the table. In the slab of a shard the
 * tensor may end, or be absent, before its last element: clt_slab_at tells how far it goes. */
clt_ref clt_slab_ref(const clt_slab *s, int entry);
/* The place of element `element` of the slab, which must be below table->total; clt_ref_none in a hole.
 * *run: the number of elements from there to the end of its piece or hole; run may be NULL. */
clt_ref clt_slab_at(const clt_slab *s, uint64_t element, uint64_t *run);
/* The same in the host's memory, of a slab of pinned memory; *host: NULL in a hole. Errors of
 * clt_buffer_host.
 */
clt_status clt_slab_host_at(const clt_slab *s, uint64_t element, uint64_t *run, char **host);
/* The same in a file: the byte of it where the element begins. false: the element is not in a file. */
bool clt_slab_file_at(const clt_slab *s, uint64_t element, uint64_t *run, uint64_t *offset);
/* Whether any element of [element, element + count) is on this rank. The range must be inside the slab. */
bool clt_slab_touches(const clt_slab *s, uint64_t element, uint64_t count);
/* Read or write `count` elements from index `element` of an fp32 slab on, across pieces, as clt_buffer_read
 * and clt_buffer_write. A range outside the slab is CLT_FAIL. Reading from a hole is CLT_FAIL; writing skips
 * holes, so that a rank can be given a whole tensor and keeps what it owns. */
clt_status clt_slab_read(const clt_slab *s, uint64_t element, float *dst, uint64_t count);
clt_status clt_slab_write(const clt_slab *s, uint64_t element, const float *src, uint64_t count);
/* Queues setting all elements to +0, padding included; holes are skipped. */
clt_status clt_slab_zero(const clt_slab *s);

#endif
