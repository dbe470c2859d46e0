#include "runtime/base/clt_host.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"

/* The number in a file; UINT64_MAX if the file does not exist or has no number ("max"). */
static uint64_t limit_in(const char *path) {
    char line[64] = "";
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    bool number = fgets(line, sizeof line, f) && *line >= '0' && *line <= '9';
    fclose(f);
    return number ? strtoull(line, NULL, 10) : UINT64_MAX;
}

/* The smallest limit of the group and its ancestors. A container may see the host's group names while only
 * its own group is mounted, as the root; files that do not exist are skipped. */
static uint64_t limit_of(const char *mount, const char *group, const char *file) {
    uint64_t least = UINT64_MAX;
    char *at = clt_strdup(group);
    for (;;) {
        char *path = clt_format("%s%s/%s", mount, at, file), *slash = strrchr(at, '/');
        uint64_t limit = limit_in(path);
        least = CLT_MIN(least, limit);
        clt_free(path);
        if (!slash) break;
        *slash = 0;
    }
    clt_free(at);
    return least;
}

/* A line of /proc/self/cgroup, NUMBER:CONTROLLERS:GROUP. Version 2 has one line, without controllers. */
static uint64_t limit_of_line(const char *root, char *line) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return UINT64_MAX;
    *controllers++ = *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    bool v2 = !*controllers, v1 = false;
    for (char *at = controllers, *word; (word = strsep(&at, ",")) != NULL;) v1 |= strcmp(word, "memory") == 0;
    if (!v1 && !v2) return UINT64_MAX;
    char *mount = clt_format("%s/sys/fs/cgroup%s", root, v2 ? "" : "/memory");
    uint64_t limit = limit_of(mount, group, v2 ? "memory.max" : "memory.limit_in_bytes");
    clt_free(mount);
    return limit;
}

uint64_t clt_host_memory_under(const char *root) {
    char line[4096], *path = clt_format("%s/proc/self/cgroup", root);
    uint64_t least = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    FILE *f = fopen(path, "r");
    clt_free(path);
    while (f && fgets(line, sizeof line, f)) {
        uint64_t limit = limit_of_line(root, line);
        least = CLT_MIN(least, limit);
    }
    if (f) fclose(f);
    return least;
}

uint64_t clt_host_memory(void) {
    return clt_host_memory_under("");
}

int clt_host_vector_bits(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") ? 512 : __builtin_cpu_supports("avx") ? 256 : 128;
#else
    return 128;
#endif
}

#if defined(__x86_64__)
/* clang 14 does not know the name. The instructions use the registers of AVX2, which the system must save. */
static bool has_avx_vnni(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

/* The matrix unit (AMX) with products of bytes or of bf16. The system saves its tiles only for processes that
 * asked. */
static bool has_matrix_unit(bool bytes) {
#if defined(__x86_64__) && defined(__linux__)
    enum { PERMIT = 0x1023, TILES = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of the kernel */
    const unsigned need = 1u << 24 | 1u << (bytes ? 25 : 22);
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & need) == need &&
           syscall(SYS_arch_prctl, PERMIT, TILES) == 0;
#else
    (void)bytes;
    return false;
#endif
}

int clt_host_has(const char *instructions) {
    if (!strcmp(instructions, "amxint8")) return has_matrix_unit(true);
    if (!strcmp(instructions, "amxbf16")) return has_matrix_unit(false);
#if defined(__x86_64__)
    if (!strcmp(instructions, "avx2")) return __builtin_cpu_supports("avx2") != 0;
    if (!strcmp(instructions, "avx512bw")) return __builtin_cpu_supports("avx512bw") != 0;
    if (!strcmp(instructions, "avx512vnni")) return __builtin_cpu_supports("avx512vnni") != 0;
    if (!strcmp(instructions, "avx512bf16")) return __builtin_cpu_supports("avx512bf16") != 0;
    if (!strcmp(instructions, "avxvnni")) return has_avx_vnni();
#elif defined(__aarch64__)
    if (!strcmp(instructions, "dotprod")) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    static const char *const names[] = {"avx2", "avx512bw", "avx512vnni", "avx512bf16", "avxvnni", "dotprod"};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        if (!strcmp(instructions, names[i])) return 0; /* of another architecture */
    return -1;
}
