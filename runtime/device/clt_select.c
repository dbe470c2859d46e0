/* Which device a rank gets. */
#include "runtime/device/clt_device_private.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { MAX_CANDIDATES = 256 };

/* Larger is faster: GPU with its own memory, integrated GPU, accelerator, CPU. */
static int kind(const clt_found *f) {
    if (f->facts.type == CLT_DEVICE_GPU) return f->unified ? 3 : 4;
    return f->facts.type == CLT_DEVICE_OTHER ? 2 : 1;
}

static bool contains(const char *text, const char *part, size_t n) {
    for (; *text; text++)
        if (strncasecmp(text, part, n) == 0) return true;
    return n == 0;
}

/* Whether the entry is "P:D", with both numbers. */
static bool is_indices(const char *entry, size_t n, int *p, int *d) {
    int used = 0;
    char text[32];
    if (n == 0 || n >= sizeof text || !isdigit((unsigned char)entry[0])) return false;
    memcpy(text, entry, n);
    text[n] = 0;
    return sscanf(text, "%d:%d%n", p, d, &used) == 2 && (size_t)used == n;
}

/* The devices that an entry matches: only those of the fastest kind, and one runtime for each CPU. */
static int candidates(const clt_found *found, int n, const char *entry, size_t len, int *out) {
    int p = 0, d = 0, count = 0, best = 0;
    bool indices = is_indices(entry, len, &p, &d);
    for (int i = 0; i < n && count < MAX_CANDIDATES; i++) {
        const clt_device_facts *f = &found[i].facts;
        /* The version text has "PoCL" where neither name does. */
        bool match = indices ? f->platform_index == p && f->device_index == d
                             : contains(f->name, entry, len) || contains(f->platform, entry, len) ||
                                   contains(f->version, entry, len);
        if (!match || kind(&found[i]) < best) continue;
        if (kind(&found[i]) > best) count = 0;
        best = kind(&found[i]);
        bool twin = false;
        for (int j = 0; j < count; j++)
            twin |= f->host_cpu && found[out[j]].facts.host_cpu &&
                    strcmp(found[out[j]].facts.host_cpu, f->host_cpu) == 0;
        if (!twin) out[count++] = i;
    }
    return count;
}

/* Entry `i` of a comma list, without the blanks around it; after the last entry the first one follows. */
static const char *entry_of(const char *pattern, int i, size_t *len) {
    int n = 1;
    for (const char *s = pattern; *s; s++) n += *s == ',';
    for (i %= n; i > 0; i--) pattern += strcspn(pattern, ",") + 1;
    pattern += strspn(pattern, " ");
    *len = strcspn(pattern, ",");
    while (*len > 0 && pattern[*len - 1] == ' ') --*len;
    return pattern;
}

static clt_status no_match(const clt_found *found, int n, const char *entry, size_t len) {
    clt_str b = {0};
    for (int i = 0; i < n; i++)
        clt_str_addf(&b, "\n  %d:%d  %s / %s", found[i].facts.platform_index, found[i].facts.device_index,
                     found[i].facts.platform, found[i].facts.name);
    clt_status st =
        clt_error(CLT_NO_DEVICE, "no device matches '%.*s'; the devices are:%s", (int)len, entry, b.s);
    clt_str_free(&b);
    return st;
}

/* The index of a rank's device, or -1: ranks with the same entry take its devices in turn, or by their slots.
 */
static int device_of(const clt_found *found, int n, const char *pattern, const int *slots, int rank) {
    size_t len, other_len;
    const char *entry = entry_of(pattern, rank, &len);
    int list[MAX_CANDIDATES], count = candidates(found, n, entry, len, list), turn = 0;
    if (count == 0) return -1;
    if (slots) return list[slots[rank] % count];
    for (int r = 0; r < rank; r++) {
        const char *other = entry_of(pattern, r, &other_len);
        turn += other_len == len && strncasecmp(other, entry, len) == 0;
    }
    return list[turn % count];
}

clt_status clt_select(const clt_found *found, int n, const char *pattern, const int *slots, int local_rank,
                      int local_size, int *index, int *share, int *sharing) {
    if (!pattern) pattern = clt_env(CLT_ENV_DEVICE);
    if (!pattern) pattern = "";
    size_t len;
    const char *entry = entry_of(pattern, local_rank, &len);
    int mine = device_of(found, n, pattern, slots, local_rank);
    if (mine < 0) return no_match(found, n, entry, len);
    int before = 0, all = 0;
    for (int r = 0; r < CLT_MAX(local_size, local_rank + 1); r++) {
        int other = device_of(found, n, pattern, slots, r);
        bool same =
            other == mine || (other >= 0 && found[other].facts.host_cpu && found[mine].facts.host_cpu);
        before += same && r < local_rank;
        all += same;
    }
    *index = mine;
    *share = before;
    *sharing = all;
    return CLT_OK;
}

clt_status clt_select_cpus(clt_found *found, int *n) {
    int kept = 0;
    for (int i = 0; i < *n; i++)
        if (found[i].facts.type == CLT_DEVICE_CPU) found[kept++] = found[i];
    *n = kept;
    return kept ? CLT_OK
                : clt_error(CLT_NO_DEVICE, "no OpenCL driver for the CPU of this host is registered: install "
                                           "one, for example the package pocl-opencl-icd");
}
