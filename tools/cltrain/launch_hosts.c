#include "tools/cltrain/launch_hosts.h"

#include <ctype.h>
#include <string.h>

static clt_launch_host *find(const clt_launch_hosts *h, const char *name) {
    for (int i = 0; i < h->n; i++)
        if (!strcmp(h->v[i].name, name)) return &h->v[i];
    return NULL;
}

/* Slots 0 to n - 1. */
static void set_slots(clt_launch_host *host, int n) {
    host->slot = clt_realloc(host->slot, (size_t)CLT_MAX(n, 1) * sizeof *host->slot);
    host->n = n;
    for (int i = 0; i < n; i++) host->slot[i] = i;
}

/* Takes over name. */
static void add(clt_launch_hosts *h, char *name, int slots) {
    h->v = clt_realloc(h->v, (size_t)(h->n + 1) * sizeof *h->v);
    h->v[h->n] = (clt_launch_host){.name = name};
    set_slots(&h->v[h->n++], slots);
}

void clt_launch_hosts_local(int slots, clt_launch_hosts *out) {
    *out = (clt_launch_hosts){0};
    add(out, clt_strdup("localhost"), slots);
}

/* --- the host file --- */

/* A line without blanks at its ends: "HOST slots=N", and anything behind it. */
static clt_status parse_line(const char *line, const char *what, int number, clt_launch_hosts *h) {
    static const char word[] = "slots=";
    const size_t n = strcspn(line, " \t");
    const char *rest = line + n + strspn(line + n, " \t");
    int64_t slots = -1;
    if (n > 0 && rest > line + n && !strncmp(rest, word, sizeof word - 1)) {
        const char *digits = rest + sizeof word - 1;
        char *text = clt_strndup(digits, strspn(digits, "0123456789"));
        if (!clt_parse_i64(text, &slots)) slots = -1;
        clt_free(text);
    }
    if (slots < 0 || slots > CLT_LAUNCH_MOST_SLOTS)
        return clt_error(CLT_BAD_CONFIG, "%s:%d: '%.80s' is no host: write HOST slots=N, with N up to %d",
                         what, number, line, CLT_LAUNCH_MOST_SLOTS);
    char *name = clt_strndup(line, n);
    if (find(h, name)) {
        clt_status st = clt_error(CLT_BAD_CONFIG, "%s:%d: host '%.80s' is named twice: give it one line",
                                  what, number, name);
        clt_free(name);
        return st;
    }
    add(h, name, (int)slots);
    return CLT_OK;
}

clt_status clt_launch_hosts_parse(const char *text, const char *what, clt_launch_hosts *out) {
    char *copy = clt_strdup(text), *rest = copy, *line;
    clt_status st = CLT_OK;
    *out = (clt_launch_hosts){0};
    for (int number = 1; st == CLT_OK && (line = strsep(&rest, "\n")); number++) {
        line += strspn(line, " \t\r");
        size_t n = strlen(line);
        while (n > 0 && isspace((unsigned char)line[n - 1])) line[--n] = 0;
        if (*line && *line != '#') st = parse_line(line, what, number, out);
    }
    clt_free(copy);
    if (st == CLT_OK && out->n == 0)
        st = clt_error(CLT_BAD_CONFIG, "%s: no hosts: write lines HOST slots=N", what);
    if (st != CLT_OK) clt_launch_hosts_free(out);
    return st;
}

/* --- include and exclude --- */

static bool has_slot(const clt_launch_host *host, int slot) {
    for (int i = 0; i < host->n; i++)
        if (host->slot[i] == slot) return true;
    return false;
}

static void remove_slot(clt_launch_host *host, int slot) {
    int n = 0;
    for (int i = 0; i < host->n; i++)
        if (host->slot[i] != slot) host->slot[n++] = host->slot[i];
    host->n = n;
}

/* "0,2" of `host` into *some, which has no slots before; a slot that is named twice counts once. */
static clt_status parse_slots(const char *option, char *list, const clt_launch_host *host,
                              clt_launch_host *some) {
    char *word;
    while ((word = strsep(&list, ","))) {
        int64_t slot;
        if (!clt_parse_i64(word, &slot) || slot < 0 || slot > CLT_LAUNCH_MOST_SLOTS)
            return clt_error(CLT_USAGE,
                             "%s: '%.40s' is no slot of host '%.80s': give numbers, as in HOST:0,2", option,
                             word, host->name);
        if (!has_slot(host, (int)slot))
            return clt_error(CLT_USAGE, "%s: host '%.80s' has no slot %d: it has %d, from 0 on", option,
                             host->name, (int)slot, host->n);
        if (!has_slot(some, (int)slot)) some->slot[some->n++] = (int)slot;
    }
    return CLT_OK;
}

/* One NODE_SPEC of the option: *to, a copy of *all, gets or loses what it names. */
static clt_status apply_node(const char *option, char *node, bool include, const clt_launch_hosts *all,
                             clt_launch_hosts *to) {
    char *slots = strchr(node, ':');
    if (slots) *slots++ = 0;
    const clt_launch_host *host = find(all, node);
    if (!host)
        return clt_error(CLT_USAGE, "%s: host '%.80s' is not among the hosts (first is '%.80s')", option,
                         node, all->v[0].name);
    clt_launch_host some = {.slot = clt_calloc((size_t)host->n + 1, sizeof *some.slot)},
                    *mine = find(to, node);
    clt_status st = CLT_OK;
    if (slots)
        st = parse_slots(option, slots, host, &some);
    else
        for (int i = 0; i < host->n; i++) some.slot[some.n++] = host->slot[i];
    if (st == CLT_OK && include) {
        memcpy(mine->slot, some.slot, (size_t)some.n * sizeof *some.slot);
        mine->n = some.n;
    }
    for (int i = 0; st == CLT_OK && !include && i < some.n; i++) remove_slot(mine, some.slot[i]);
    clt_free(some.slot);
    return st;
}

static clt_status apply_nodes(clt_launch_hosts *h, const char *words, bool include) {
    clt_launch_hosts to = {0};
    for (int i = 0; i < h->n; i++) add(&to, clt_strdup(h->v[i].name), h->v[i].n);
    for (int i = 0; i < to.n && include; i++) to.v[i].n = 0; /* room for the slots of h stays */
    char *copy = clt_strdup(words), *rest = copy, *node;
    clt_status st = CLT_OK;
    while (st == CLT_OK && (node = strsep(&rest, "@")))
        st = apply_node(include ? "--include" : "--exclude", node, include, h, &to);
    clt_free(copy);
    clt_launch_hosts_free(st == CLT_OK ? h : &to);
    if (st == CLT_OK) *h = to;
    return st;
}

static void keep_first(clt_launch_hosts *h, int n) {
    while (h->n > n) {
        clt_free(h->v[--h->n].name);
        clt_free(h->v[h->n].slot);
    }
}

static void drop_empty(clt_launch_hosts *h) {
    int n = 0;
    for (int i = 0; i < h->n; i++) {
        clt_launch_host host = h->v[i];
        h->v[i] = h->v[n];
        h->v[n] = host;
        n += host.n > 0;
    }
    keep_first(h, n);
}

clt_status clt_launch_hosts_apply(clt_launch_hosts *h, const clt_launch_filter_words *f) {
    if (f->include && f->exclude)
        return clt_error(CLT_USAGE, "--include and --exclude are mutually exclusive: give one of them");
    if ((f->include || f->exclude) && (f->nodes || f->slots))
        return clt_error(CLT_USAGE, "%s cannot be combined with --num_nodes and --num_gpus: give one of them",
                         f->include ? "--include" : "--exclude");
    if (f->include) CLT_TRY(apply_nodes(h, f->include, true));
    if (f->exclude) CLT_TRY(apply_nodes(h, f->exclude, false));
    if (f->nodes > h->n)
        return clt_error(CLT_USAGE, "--num_nodes is %lld, but there %s %d host%s: add hosts to the host file",
                         (long long)f->nodes, h->n == 1 ? "is" : "are", h->n, h->n == 1 ? "" : "s");
    if (f->nodes) keep_first(h, (int)f->nodes);
    for (int i = 0; i < h->n && f->slots; i++) set_slots(&h->v[i], (int)f->slots);
    drop_empty(h);
    return h->n ? CLT_OK : clt_error(CLT_USAGE, "no slot is left to run on: exclude fewer");
}

/* --- results --- */

int clt_launch_hosts_ranks(const clt_launch_hosts *h) {
    int ranks = 0;
    for (int i = 0; i < h->n; i++) ranks += h->v[i].n;
    return ranks;
}

char *clt_launch_hosts_slots(const clt_launch_hosts *h) {
    clt_str out = {0};
    bool plain = true;
    for (int i = 0; i < h->n; i++)
        for (int k = 0; k < h->v[i].n; k++) {
            plain &= h->v[i].slot[k] == k;
            clt_str_addf(&out, "%s%d", out.len ? "," : "", h->v[i].slot[k]);
        }
    if (!plain) return out.s;
    clt_str_free(&out);
    return NULL;
}

char *clt_launch_hosts_text(const clt_launch_hosts *h, bool mpich) {
    clt_str out = {0};
    for (int i = 0; i < h->n; i++)
        clt_str_addf(&out, mpich ? "%s:%d\n" : "%s slots=%d\n", h->v[i].name, h->v[i].n);
    return out.s;
}

void clt_launch_hosts_free(clt_launch_hosts *h) {
    keep_first(h, 0);
    clt_free(h->v);
    *h = (clt_launch_hosts){0};
}
