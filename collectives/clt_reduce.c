/* Gradient reduction of several ranks, block by block.
 *
 * Every rank brings the sums of its maximal whole subtrees of lanes. For each block of the slab: the ranks
 * put their subtree sums where the others can read them; each rank adds up its own share of the block on its
 * device, in the order of the binary tree over lane numbers; the shares are put together and every rank takes
 * the whole block. The additions and their order are those that one rank with all lanes makes (a node is left
 * + right, a node with an empty side is its other side), so the bits are the same; who adds which elements,
 * and how bytes travel, changes nothing. Where gradients travel as bf16, each subtree sum is rounded on its
 * device before it leaves and widened where it is added, and so are the totals of the shares. */
#include "collectives/clt_mpi.h"

#include <string.h>
#include <unistd.h>

enum { BLOCK = 64 * CLT_CHUNK /* elements: 16 MiB */, GAVE_UP = -1 /* as a width */ };

typedef struct {
    int32_t first, width, empty, rank, slot;
} sum_entry;

typedef struct {
    int first, width, place; /* place -1: empty */
} subtree;

typedef struct {
    bool shm;
    uint64_t wire;         /* bytes of an element on its way: 4, or 2 for bf16 */
    int most;              /* subtree sums of a rank at most */
    int places;            /* ranks * most */
    uint64_t block, share; /* elements at most */
    size_t window_bytes;
    char *window;        /* shm: [places][block], then [block] for the total; mpi: own [most][block] */
    char *inbox;         /* mpi: [places][share] */
    char *total;         /* [block] */
    clt_buffer *scratch; /* fp32 [places][share] on the device */
    clt_buffer *narrow;  /* bf16 [block] on the device: what comes or goes; NULL if fp32 travels */
    sum_entry *entry;    /* [places]: everybody's subtrees in the order of their lanes */
    int n_entries;
    subtree *stack;       /* [places] */
    MPI_Request *request; /* mpi: [2 * places] */
} block_state;

/* Subtrees of a rank: at most two of each size. */
static int most_sums(const clt_lane_split *s) {
    int most = 1;
    for (int r = 0; r < s->ranks; r++) {
        int first = clt_lane_begin(s, r), last = clt_lane_begin(s, r + 1), n = 0;
        for (int at = first; at < last; n++) {
            int w = 1;
            while (at % (2 * w) == 0 && at + 2 * w <= last) w *= 2;
            at += w;
        }
        most = CLT_MAX(most, n);
    }
    return most;
}

static uint64_t share_elements(uint64_t block, int ranks) {
    return CLT_ROUND_UP(CLT_CEIL_DIV(block, (uint64_t)ranks), (uint64_t)64);
}

static uint64_t scratch_elements(const clt_slab_table *t, const clt_lane_split *s) {
    uint64_t block = CLT_MIN(t->total, (uint64_t)BLOCK);
    return share_elements(block, s->ranks) * (uint64_t)most_sums(s) * (uint64_t)s->ranks;
}

uint64_t clt_reduce_plan_bytes(const clt_slab_table *t, const clt_lane_split *split, bool bf16) {
    if (split->ranks == 1) return 0;
    return scratch_elements(t, split) * 4 + (bf16 ? CLT_MIN(t->total, (uint64_t)BLOCK) * 2 : 0);
}

/* Smaller blocks where the host's shared memory is small: containers often have 64 MiB. Only the speed
 * changes. */
static clt_status fit_block(clt_group *g, block_state *b, uint64_t total) {
    uint64_t block = CLT_MIN(total, (uint64_t)BLOCK), room = clt_shm_free() / 2;
    while (block > CLT_CHUNK && ((uint64_t)b->places + 1) * block * b->wire > room)
        block = CLT_ROUND_UP(block / 2, (uint64_t)CLT_CHUNK);
    b->block = block;
    return clt_group_broadcast(g, 0, &b->block, sizeof b->block);
}

static clt_status map_window(clt_reduce_plan *p, block_state *b) {
    clt_group *g = p->group;
    char name[64];
    void *w = NULL;
    snprintf(name, sizeof name, "/cltrain.w.%ld.%.0f", (long)getpid(), clt_now() * 1e6);
    CLT_TRY(clt_group_broadcast(g, 0, name, sizeof name));
    b->window_bytes = ((uint64_t)b->places + 1) * b->block * b->wire;
    CLT_TRY(clt_shm_share(g, clt_group_agree, name, b->window_bytes, g->rank == 0, &w));
    b->window = w;
    b->total = b->window + (uint64_t)b->places * b->block * b->wire;
    return CLT_OK;
}

static clt_status prepare(clt_reduce_plan *p, block_state *b) {
    clt_group *g = p->group;
    b->shm = g->ops == &clt_group_shm;
    b->wire = p->math.to_bf16 ? 2 : 4;
    b->most = most_sums(&p->split);
    b->places = g->size * b->most;
    b->block = CLT_MIN(p->table->total, (uint64_t)BLOCK);
    if (b->shm) CLT_TRY(fit_block(g, b, p->table->total));
    b->share = share_elements(b->block, g->size);
    b->entry = clt_calloc((size_t)b->places, sizeof *b->entry);
    b->stack = clt_calloc((size_t)b->places, sizeof *b->stack);
    const uint64_t all_shares = (uint64_t)b->places * b->share;
    clt_status st = clt_buffer_create(p->dev, all_shares * 4, "exchange", &b->scratch);
    if (st == CLT_OK && b->wire == 2) st = clt_buffer_create(p->dev, b->block * 2, "exchange", &b->narrow);
    CLT_TRY(clt_group_agree(g, st));
    if (b->shm) return map_window(p, b);
    b->window = clt_aligned_alloc((uint64_t)b->most * b->block * b->wire);
    b->inbox = clt_aligned_alloc(all_shares * b->wire);
    b->total = clt_aligned_alloc((uint64_t)g->size * b->share * b->wire);
    b->request = clt_calloc((size_t)(2 * b->places), sizeof(MPI_Request));
    return CLT_OK;
}

clt_status clt_blocks_plan(clt_reduce_plan *p) {
    p->state = clt_calloc(1, sizeof(block_state));
    clt_status st = prepare(p, p->state);
    if (st != CLT_OK) clt_blocks_unplan(p);
    return st;
}

void clt_blocks_unplan(clt_reduce_plan *p) {
    block_state *b = p->state;
    if (!b) return;
    clt_buffer_destroy(b->scratch);
    clt_buffer_destroy(b->narrow);
    if (b->shm) {
        clt_shm_unmap(b->window, b->window_bytes);
    } else {
        clt_free(b->window);
        clt_free(b->inbox);
        clt_free(b->total);
    }
    clt_free(b->entry);
    clt_free(b->stack);
    clt_free(b->request);
    clt_free(b);
    p->state = NULL;
}

/* Lists everybody's subtrees in the order of their lanes; CLT_STOPPED on all ranks if one gives up (n < 0).
 */
static clt_status list_sums(clt_reduce_plan *p, const clt_lane_sum *sums, int n) {
    block_state *b = p->state;
    sum_entry *mine = clt_calloc((size_t)b->most, sizeof *mine),
              *all = clt_calloc((size_t)b->places, sizeof *all);
    bool gave_up = false;
    for (int i = 0; i < b->most; i++) {
        mine[i] = (sum_entry){.rank = p->group->rank, .slot = i, .width = n < 0 ? GAVE_UP : 0};
        if (i >= n) continue;
        mine[i].first = sums[i].first;
        mine[i].width = sums[i].width;
        mine[i].empty = sums[i].empty;
    }
    clt_status st = clt_group_all_gather(p->group, mine, (size_t)b->most * sizeof *mine, all);
    b->n_entries = 0;
    for (int i = 0; i < b->places; i++) {
        if (all[i].width > 0) b->entry[b->n_entries++] = all[i];
        gave_up |= all[i].width == GAVE_UP;
    }
    clt_free(mine);
    clt_free(all);
    return st == CLT_OK && gave_up ? CLT_STOPPED : st;
}

/* This rank's part [*first, *first + *count) of a block of n elements. */
static void share_of(const block_state *b, int rank, uint64_t n, uint64_t *first, uint64_t *count) {
    *first = CLT_MIN((uint64_t)rank * b->share, n);
    *count = CLT_MIN(n, ((uint64_t)rank + 1) * b->share) - *first;
}

/* Where the share of entry i lies on the host, after the exchange. */
static char *piece(const block_state *b, int i, uint64_t share_first) {
    const sum_entry *e = &b->entry[i];
    uint64_t place = (uint64_t)(e->rank * b->most + e->slot);
    return b->shm ? b->window + (place * b->block + share_first) * b->wire
                  : b->inbox + place * b->share * b->wire;
}

static clt_status exchange_mpi(clt_reduce_plan *p, uint64_t n) {
    block_state *b = p->state;
    clt_group *g = p->group;
    MPI_Comm world = ((clt_mpi_state *)g->state)->world;
    MPI_Request *req =
        b->request; /* one for each place of another rank, and one for each place there at most */
    int k = 0;
    uint64_t first, count;
    share_of(b, g->rank, n, &first, &count);
    for (int i = 0; i < b->n_entries; i++) {
        const sum_entry *e = &b->entry[i];
        if (e->empty) continue;
        if (e->rank != g->rank)
            MPI_Irecv(piece(b, i, 0), (int)(count * b->wire), MPI_BYTE, e->rank, e->slot, world, &req[k++]);
        if (e->rank != g->rank) continue;
        const char *from = b->window + ((uint64_t)e->slot * b->block + first) * b->wire;
        memcpy(piece(b, i, 0), from, count * b->wire);
    }
    for (int r = 0; r < g->size; r++) {
        uint64_t to, m;
        share_of(b, r, n, &to, &m);
        for (int i = 0; r != g->rank && i < b->n_entries; i++) {
            const sum_entry *e = &b->entry[i];
            if (e->rank != g->rank || e->empty) continue;
            MPI_Isend(b->window + ((uint64_t)e->slot * b->block + to) * b->wire, (int)(m * b->wire), MPI_BYTE,
                      r, e->slot, world, &req[k++]);
        }
    }
    return clt_mpi_wait(g, k, req, "gradient reduction");
}

static clt_status gather_mpi(clt_reduce_plan *p) {
    block_state *b = p->state;
    MPI_Request r;
    /* Shares lie at multiples of b->share; the last ones may be short or empty, which costs nothing but
     * bytes. */
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, b->total, (int)(b->share * b->wire), MPI_BYTE,
                   ((clt_mpi_state *)p->group->state)->world, &r);
    return clt_mpi_wait(p->group, 1, &r, "gradient reduction");
}

/* left = left + right on the device, or the one of them that is not empty. */
static clt_status join_subtrees(clt_reduce_plan *p, subtree *left, const subtree *right, uint64_t count) {
    block_state *b = p->state;
    if (left->place < 0)
        left->place = right->place;
    else if (right->place >= 0)
        CLT_TRY(p->math.add(p->math.ctx, (clt_ref){b->scratch, (uint64_t)left->place * b->share},
                            (clt_ref){b->scratch, (uint64_t)right->place * b->share}, count));
    left->width *= 2;
    return CLT_OK;
}

/* Between the host's bytes and fp32 on the device, by way of `narrow` where bf16 travels. */
static clt_status from_wire(clt_reduce_plan *p, clt_ref dst, const char *src, uint64_t count) {
    block_state *b = p->state;
    if (!b->narrow) return clt_buffer_write(dst.buf, dst.off * 4, src, count * 4);
    CLT_TRY(clt_buffer_write(b->narrow, 0, src, count * 2));
    return p->math.to_f32(p->math.ctx, dst, (clt_ref){b->narrow, 0}, count);
}
static clt_status to_wire(clt_reduce_plan *p, char *dst, clt_ref src, uint64_t count) {
    block_state *b = p->state;
    if (!b->narrow) return clt_buffer_read(src.buf, src.off * 4, dst, count * 4);
    CLT_TRY(p->math.to_bf16(p->math.ctx, (clt_ref){b->narrow, 0}, src, count));
    return clt_buffer_read(b->narrow, 0, dst, count * 2);
}

/* The same for `n` elements of a slab from `at` on, piece by piece. */
static clt_status slab_on_wire(clt_reduce_plan *p, const clt_slab *s, uint64_t at, char *host, uint64_t n,
                               bool out) {
    const uint64_t wire = ((block_state *)p->state)->wire;
    for (uint64_t done = 0, run; done < n; done += run) {
        const clt_ref place = clt_slab_at(s, at + done, &run);
        run = CLT_MIN(run, n - done);
        char *bytes = host + done * wire;
        CLT_TRY(out ? to_wire(p, bytes, place, run) : from_wire(p, place, bytes, run));
    }
    return CLT_OK;
}

/* Adds the entries' shares on the device: a stack of complete subtrees, joined as soon as two are buddies. */
static clt_status add_tree(clt_reduce_plan *p, uint64_t share_first, uint64_t count, char *out) {
    block_state *b = p->state;
    subtree *s = b->stack;
    int n = 0;
    for (int i = 0; i < b->n_entries; i++) {
        const sum_entry *e = &b->entry[i];
        const clt_ref place = {b->scratch, (uint64_t)i * b->share};
        if (!e->empty) CLT_TRY(from_wire(p, place, piece(b, i, share_first), count));
        s[n++] = (subtree){e->first, e->width, e->empty ? -1 : i};
        for (; n > 1 && s[n - 2].width == s[n - 1].width && s[n - 2].first % (2 * s[n - 2].width) == 0; n--)
            CLT_TRY(join_subtrees(p, &s[n - 2], &s[n - 1], count));
    }
    if (n != 1 || s[0].width != p->split.lanes)
        return clt_error(CLT_FAIL, "the ranks' lanes do not make up all %d; this is a bug", p->split.lanes);
    if (s[0].place < 0) {
        memset(out, 0, count * b->wire);
        return CLT_OK;
    }
    return to_wire(p, out, (clt_ref){b->scratch, (uint64_t)s[0].place * b->share}, count);
}

static clt_status reduce_block(clt_reduce_plan *p, const clt_lane_sum *sums, int n_sums, clt_slab *total,
                               uint64_t at, uint64_t n) {
    block_state *b = p->state;
    clt_group *g = p->group;
    uint64_t first, count;
    const uint64_t place_bytes = b->block * b->wire;
    char *mine = b->shm ? b->window + (uint64_t)g->rank * (uint64_t)b->most * place_bytes : b->window;
    for (int i = 0; i < n_sums; i++)
        if (!sums[i].empty)
            CLT_TRY(slab_on_wire(p, sums[i].slab, at, mine + (uint64_t)i * place_bytes, n, true));
    CLT_TRY(b->shm ? clt_shm_barrier(g) : exchange_mpi(p, n));
    share_of(b, g->rank, n, &first, &count);
    char *out = b->total + (b->shm ? first : (uint64_t)g->rank * b->share) * b->wire;
    if (count) CLT_TRY(add_tree(p, first, count, out));
    CLT_TRY(b->shm ? clt_shm_barrier(g) : gather_mpi(p));
    return slab_on_wire(p, total, at, b->total, n, false);
}

clt_status clt_blocks_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    block_state *b = p->state;
    CLT_TRY(list_sums(p, sums, n));
    for (uint64_t at = 0; at < p->table->total; at += b->block) {
        uint64_t m = CLT_MIN(b->block, p->table->total - at);
        CLT_TRY(reduce_block(p, sums, n, total, at, m));
        /* Nobody may overwrite a window that somebody still reads. */
        if (b->shm) CLT_TRY(clt_shm_barrier(p->group));
    }
    return CLT_OK;
}
