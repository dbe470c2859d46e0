/* clt_group_split: who is in which child is found here, for all components. */
#include "collectives/clt_group_internal.h"

/* What every rank of the parent tells the others. */
typedef struct {
    int32_t color, key, rank_in_run, host;
} split_word;

/* Whether rank a of the parent comes before rank b in their child. */
static bool comes_before(const split_word *all, int a, int b) {
    return all[a].key != all[b].key ? all[a].key < all[b].key : a < b;
}

static clt_group *gather_members(const clt_group *g, const split_word *all) {
    const split_word *me = &all[g->rank];
    clt_group *c = clt_calloc(1, sizeof *c);
    c->ops = g->ops;
    c->run = g->run;
    c->stop = g->stop;
    c->member = clt_calloc((size_t)g->size, sizeof *c->member);
    for (int r = 0; r < g->size; r++) {
        int place = 0;
        if (all[r].color != me->color) continue;
        for (int q = 0; q < g->size; q++) place += all[q].color == me->color && comes_before(all, q, r);
        c->member[place] = all[r].rank_in_run;
        c->size++;
        if (r == g->rank) c->rank = place;
        if (all[r].host != me->host) continue;
        c->local_size++;
        c->local_rank += comes_before(all, r, g->rank);
    }
    return c;
}

static void free_child(clt_group *c) {
    if (c) clt_free(c->member);
    clt_free(c);
}

clt_status clt_group_split(clt_group *g, int color, int key, clt_group **child) {
    const split_word mine = {color, key, clt_group_rank_in_run(g, g->rank), g->run->host};
    split_word *all = clt_calloc((size_t)g->size, sizeof *all);
    clt_status st = clt_group_all_gather(g, &mine, sizeof mine, all);
    clt_group *c = st == CLT_OK && color >= 0 ? gather_members(g, all) : NULL;
    clt_free(all);
    if (st != CLT_OK) return st;
    const clt_status own = g->ops->split(g, color, c);
    st = clt_group_agree(g, own);
    if (st == CLT_OK) {
        *child = c;
        return CLT_OK;
    }
    if (c && own == CLT_OK) c->ops->unsplit(c);
    free_child(c);
    return st;
}
