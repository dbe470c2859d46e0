/* clt_group_check_same: what rank 0 has is compared on every rank; the lowest rank that differs is named. */
#include <string.h>
#include <unistd.h>

#include "collectives/clt_group_internal.h"

/* What every rank tells the others. Ranks of different versions of the program exchange it, so its layout and
 * the exchanges of this file must never change. */
typedef struct {
    char host[64];
    char key[128];              /* of the first line that differs from rank 0's; empty: none does */
    char here[160], first[160]; /* its values on this rank and on rank 0; empty: not set */
} word;

typedef struct {
    const char *at;
    size_t key, value; /* lengths */
} line;

/* Reads the line "KEY: VALUE" at *text and moves *text behind it; false at the end. A line without ": " is a
 * key. */
static bool next_line(const char **text, line *out) {
    const char *at = *text;
    const size_t n = strcspn(at, "\n");
    if (!*at) return false;
    const char *colon = memmem(at, n, ": ", 2);
    out->at = at;
    out->key = colon ? (size_t)(colon - at) : n;
    out->value = colon ? n - out->key - 2 : 0;
    *text = at + n + (at[n] == '\n');
    return true;
}

static bool find_key(const char *text, const line *wanted, line *out) {
    while (next_line(&text, out))
        if (out->key == wanted->key && memcmp(out->at, wanted->at, out->key) == 0) return true;
    return false;
}

static void copy(char *to, size_t room, const char *from, size_t n) {
    static const char more[] = "...";
    snprintf(to, room, "%.*s", (int)CLT_MIN(n, room - 1), from);
    if (n >= room) memcpy(to + room - sizeof more, more, sizeof more);
}

/* The first line of `a` that `b` does not have; *other is b's line of that key, or has at == NULL. */
static bool find_difference(const char *a, const char *b, line *own, line *other) {
    while (next_line(&a, own)) {
        if (!find_key(b, own, other))
            *other = (line){0};
        else if (own->value == other->value &&
                 memcmp(own->at + own->key, other->at + other->key, own->value + (own->value ? 2 : 0)) == 0)
            continue;
        return true;
    }
    return false;
}

static void copy_value(char *to, size_t room, const line *l) {
    if (l->value) copy(to, room, l->at + l->key + 2, l->value);
}

static void compare(const char *mine, const char *first, word *w) {
    line here, there;
    if (!find_difference(mine, first, &here, &there) && !find_difference(first, mine, &there, &here)) return;
    const line *known = here.at ? &here : &there;
    copy(w->key, sizeof w->key, known->at, known->key);
    copy_value(w->here, sizeof w->here, &here);
    copy_value(w->first, sizeof w->first, &there);
}

/* Rank 0's text on every rank; the caller frees it. */
static clt_status fetch_first(clt_group *g, const char *text, char **out) {
    uint64_t n = strlen(text);
    CLT_TRY(clt_group_broadcast(g, 0, &n, sizeof n));
    char *first = g->rank == 0 ? clt_strdup(text) : clt_calloc(1, n + 1);
    const clt_status st = clt_group_broadcast(g, 0, first, n);
    if (st == CLT_OK)
        *out = first;
    else
        clt_free(first);
    return st;
}

/* One rank prints; all have the text for clt_last_error. */
static clt_status refuse(const clt_group *g, const word *all, int rank, const char *what,
                         const char *advice) {
    const word *w = &all[rank];
    if (g->rank != 0) clt_error_quiet(true);
    clt_error(CLT_BAD_CONFIG, "rank %d's %s (host %s) differs from rank %d's (host %s): %s is %s, %s%s; %s",
              clt_group_rank_in_run(g, rank), what, w->host, clt_group_rank_in_run(g, 0), all[0].host, w->key,
              w->here[0] ? w->here : "not set", w->first[0] ? "not " : "there it is not set", w->first,
              advice);
    if (g->rank != 0) clt_error_quiet(false);
    return CLT_BAD_CONFIG;
}

clt_status clt_group_check_same(clt_group *g, const char *what, const char *text, const char *advice) {
    char *first = NULL;
    word mine;
    if (g->size == 1) return CLT_OK;
    memset(&mine, 0, sizeof mine);
    gethostname(mine.host, sizeof mine.host - 1);
    CLT_TRY(fetch_first(g, text, &first));
    compare(text, first, &mine);
    clt_free(first);
    word *all = clt_calloc((size_t)g->size, sizeof *all);
    clt_status st = clt_group_all_gather(g, &mine, sizeof mine, all);
    for (int r = 1; st == CLT_OK && r < g->size; r++)
        if (all[r].key[0]) st = refuse(g, all, r, what, advice);
    clt_free(all);
    return st;
}
