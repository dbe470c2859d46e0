/* The host's side of a collective: MPI's own on host memory, with as many bytes as the device's side. MPI has
 * no bf16: its numbers are fp32, half as many. */
#include "tools/clbench/collective.h"

typedef struct {
    collective_row row;
    int rank, ranks;
    uint64_t count, part; /* fp32 numbers in all, of a rank */
    float **data;         /* [row.calls] */
} host_side;

static void destroy(void *side) {
    host_side *h = side;
    if (!h) return;
    for (int i = 0; i < h->row.calls; i++) clt_free(h->data[i]);
    clt_free(h->data);
    clt_free(h);
}

clt_status collective_host_create(const collective_row *r, void **out) {
    host_side *h = clt_calloc(1, sizeof *h);
    clt_status st = CLT_OK;
    *out = h;
    h->row = *r;
    h->rank = clt_group_rank(r->group);
    h->ranks = clt_group_size(r->group);
    h->count = r->count * clt_dtype_bytes(r->type) / sizeof(float);
    h->part = h->count / (uint64_t)h->ranks;
    h->data = clt_calloc((size_t)r->calls, sizeof *h->data);
    for (int i = 0; i < r->calls && st == CLT_OK; i++) {
        h->data[i] = clt_try_aligned_alloc(h->count * sizeof(float));
        if (!h->data[i]) st = clt_no_memory("the buffer of MPI's collective", h->count * sizeof(float));
    }
    return clt_group_agree(r->group, st);
}

static clt_status fill(void *side, uint32_t first) {
    host_side *h = side;
    for (int i = 0; i < h->row.calls; i++)
        collective_fill(CLT_F32, h->rank, first + (uint32_t)i, 0, h->count, h->data[i]);
    return CLT_OK;
}

static clt_status run(void *side) {
    host_side *h = side;
    return clt_mpi_anchor(h->row.group, h->row.what, h->data, h->row.calls, h->count);
}

static clt_status check(void *side, uint32_t first, int64_t *wrong) {
    host_side *h = side;
    for (int i = 0; i < h->row.calls; i++) {
        const uint32_t call = first + (uint32_t)i;
        const bool scattered = h->row.what == CLT_MPI_REDUCE_SCATTER;
        for (int r = 0; r < h->ranks && h->row.what == CLT_MPI_ALL_GATHER; r++)
            *wrong += (int64_t)collective_wrong_copies(CLT_F32, r, call, (uint64_t)r * h->part, h->part,
                                                       h->data[i] + (uint64_t)r * h->part);
        if (h->row.what != CLT_MPI_ALL_GATHER)
            *wrong +=
                (int64_t)collective_wrong_sums(h->ranks, call, 0, scattered ? (uint64_t)h->rank * h->part : 0,
                                               scattered ? h->part : h->count, h->data[i]);
    }
    return CLT_OK;
}

const collective_side collective_host = {fill, run, check, destroy};
