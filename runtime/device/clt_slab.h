/* clt_slab: flat storage of all parameters; gradients and optimizer state are slabs with the same table.
 *
 * One table lists name, shape and offset of every tensor. It does not depend on the device or the number of
 * ranks: a tensor of at least 65,536 elements starts at a chunk border (a multiple of 65,536 elements),
 * smaller ones follow each other at multiples of 64, padding is +0. The table is also the sharding plan and
 * the table of checkpoints. On a device the slab is cut into pieces of at most `piece_bytes` (default 1 GiB),
 * only at chunk borders where a tensor starts, so no tensor lies in two pieces; a tensor larger than that has
 * a piece of its own. Each piece is one buffer.
 *
 * Elements are fp32. clt_slab_create_narrow makes a slab of 16-bit elements with the same borders, for a copy
 * of the weights that matrix units read. */
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
    uint64_t total; /* elements, a multiple of CLT_CHUNK */
} clt_slab_table;

/* Start from {0}; entries are laid out in the order of the calls. */
int clt_slab_table_add(clt_slab_table *t, const char *name, int dims, const int64_t *shape); /* its index */
void clt_slab_table_finish(clt_slab_table *t);                                               /* sets total */
int clt_slab_table_find(const clt_slab_table *t, const char *name);                          /* -1: absent */
void clt_slab_table_free(clt_slab_table *t);

typedef struct {
    const clt_slab_table *table; /* borrowed */
    clt_buffer **piece;
    uint64_t *start; /* n + 1 element offsets: piece i holds [start[i], start[i+1]) */
    int n;
    uint32_t element_bytes; /* 4, or 2 in a narrow slab */
} clt_slab;

/* piece_bytes 0: 1 GiB, or the device's largest allocation if that is smaller. Contents are +0. `name` is for
 * the memory table. CLT_NO_MEMORY names a tensor above the device's largest allocation. */
clt_status clt_slab_create(clt_device *dev, const clt_slab_table *t, uint64_t piece_bytes, const char *name,
                           clt_slab **out);
/* A slab of 16-bit elements with the table and the piece borders of `like`: a launch over piece i of one fits
 * piece i of the other. Contents are 0. clt_slab_read and clt_slab_write are for fp32 slabs only. */
clt_status clt_slab_create_narrow(clt_device *dev, const clt_slab *like, const char *name, clt_slab **out);
void clt_slab_destroy(clt_slab *s); /* NULL is allowed */
/* The place of tensor `entry`. */
clt_ref clt_slab_ref(const clt_slab *s, int entry);
/* The place of element `element`; *run: the number of elements from it to the end of its piece. */
clt_ref clt_slab_at(const clt_slab *s, uint64_t element, uint64_t *run);
/* Elements in any pieces. A range outside the slab is CLT_FAIL. */
clt_status clt_slab_read(const clt_slab *s, uint64_t element, float *dst, uint64_t count);
clt_status clt_slab_write(const clt_slab *s, uint64_t element, const float *src, uint64_t count);
clt_status clt_slab_zero(const clt_slab *s);

#endif
