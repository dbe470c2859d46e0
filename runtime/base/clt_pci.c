#include "runtime/base/clt_pci.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_base.h"

/* The number below CLT_CPUS_MOST that *s begins with, and *s moves behind it; -1: none. */
static int number(const char **s) {
    char *end;
    if (!isdigit((unsigned char)**s)) return -1;
    const unsigned long n = strtoul(*s, &end, 10);
    *s = end;
    return n < CLT_CPUS_MOST ? (int)n : -1;
}

bool clt_cpus_parse(const char *text, clt_cpus *out) {
    CPU_ZERO_S(sizeof *out, out->part);
    for (const char *s = text;; s++) {
        const int first = number(&s);
        int last = first;
        if (*s == '-') {
            s++;
            last = number(&s);
        }
        if (first < 0 || last < first) return false;
        for (int cpu = first; cpu <= last; cpu++) CPU_SET_S((size_t)cpu, sizeof *out, out->part);
        if (*s != ',') return *s == 0 || strcmp(s, "\n") == 0;
    }
}

/* The first line of a file of the device; sysfs has no longer one than a page. */
static bool read_line(const char *address, const char *name, char line[4096 + 1]) {
    const char *root = clt_env(CLT_ENV_SYSFS);
    char *path = clt_format("%s/bus/pci/devices/%s/%s", root ? root : "/sys", address, name);
    FILE *f = fopen(path, "r");
    clt_free(path);
    const bool read = f && fgets(line, 4096 + 1, f);
    if (f) fclose(f);
    return read;
}

int clt_pci_node(const char *address, clt_cpus *cpus) {
    char line[4096 + 1];
    const char *s = line;
    clt_cpus ignored;
    if (!*address || !read_line(address, "numa_node", line)) return -1;
    const int node = number(&s); /* Linux writes -1 if it does not know */
    if (node < 0 || (*s && strcmp(s, "\n") != 0)) return -1;
    if (!read_line(address, "local_cpulist", line)) return -1;
    return clt_cpus_parse(line, cpus ? cpus : &ignored) ? node : -1;
}
