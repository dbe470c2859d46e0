#include "runtime/device/clt_quirks.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* --- the table --- */

/* A row to copy, with all members set. Leave out what does not matter. A new quirk is also a line of
 * clt_quirk in the header and of `quirks` below.
 *
 *     {.platform = "Example OpenCL", .vendor = "Example Inc", .device = "X100", .types = CLT_TYPE_GPU,
 *      .driver_from = "2.1", .driver_before = "2.4.1", .quirk = CLT_QUIRK_KEEPS_PROGRAMS,
 *      .why = "2.1 to 2.4: a second build of a program returned in 1 ms, also in a new process"},
 */
const clt_quirk_row clt_quirk_rows[] = {
    {.platform = "Portable Computing Language",
     .quirk = CLT_QUIRK_KEEPS_PROGRAMS,
     .why = "PoCL caches programs, and asking it for a binary costs a second build"},
    {.platform = "Oclgrind",
     .quirk = CLT_QUIRK_KEEPS_PROGRAMS,
     .why = "a simulator that interprets programs: there is no code to keep"},
    {.platform = "Portable Computing Language",
     .quirk = CLT_QUIRK_COMPILES_AT_LAUNCH,
     .why = "clBuildProgram runs the front end alone; the first launch of each work-group size compiles"},
    {.platform = "Portable Computing Language",
     .quirk = CLT_QUIRK_SLOW_DECLARATIONS,
     .why = "0.9 MB are read with each program, even a cached one: 0.25 s for the 15 of a warm start"},
    {.platform = "Intel",
     .types = CLT_TYPE_CPU,
     .quirk = CLT_QUIRK_USES_WAITING_THREAD,
     .why = "it has fewer threads than cores and computes on those that wait: without one a core is idle"},
    {.vendor = "NVIDIA",
     .types = CLT_TYPE_GPU,
     .quirk = CLT_QUIRK_TAKES_INLINE_ASM,
     .why = "other vendors' compilers may end the process over inline assembly that they do not know"},
    {.platform = "Portable Computing Language",
     .types = CLT_TYPE_CPU,
     .driver_from = "4.0",
     .driver_before = "7.0",
     .quirk = CLT_QUIRK_DIES_OF_INLINE_ASM,
     .why = "handleLocalMemAllocas takes calls without a name for its own and fails an assertion: 5.0, 6.0"},
};
const int clt_quirk_rows_count = (int)CLT_COUNT_OF(clt_quirk_rows);

static const struct {
    const char *name, *effect;
} quirks[] = {
    [CLT_QUIRK_KEEPS_PROGRAMS] = {"keeps_programs",
                                  "the driver caches programs; cltrain's cache does not store them again"},
    [CLT_QUIRK_COMPILES_AT_LAUNCH] =
        {"compiles_at_launch", "of several ranks on a host, one runs the first launch of a kernel alone"},
    [CLT_QUIRK_SLOW_DECLARATIONS] =
        {"slow_declarations", "programs are built with a short list of declarations where that suffices"},
    [CLT_QUIRK_USES_WAITING_THREAD] = {"uses_waiting_thread",
                                       "a thread of cltrain waits inside the driver while the device works"},
    [CLT_QUIRK_TAKES_INLINE_ASM] = {"takes_inline_asm", "inline PTX is probed"},
    [CLT_QUIRK_DIES_OF_INLINE_ASM] =
        {"dies_of_inline_asm", "kernels with a CPU's 8-bit instructions are not tried: exact8 is slower"},
};
_Static_assert(CLT_COUNT_OF(quirks) == CLT_QUIRKS, "a name and an effect for each quirk");

const clt_known_driver clt_known_drivers[] = {
    {"libnvidia-opencl.so.1", "nvidia.icd", "NVIDIA"},  {"libamdocl64.so", "amdocl64.icd", "AMD"},
    {"libintelocl.so", "intel-cpu.icd", "Intel"},       {"libigdrcl.so", "intel-gpu.icd", "Intel"},
    {"libpocl.so.2", "pocl.icd", "Portable Computing"}, {"libRusticlOpenCL.so.1", "rusticl.icd", "rusticl"},
};
const int clt_known_drivers_count = (int)CLT_COUNT_OF(clt_known_drivers);

/* --- matching --- */

/* The number at *s, which moves behind it and its dot; 0 if there is none. */
static unsigned long next_number(const char **s) {
    char *end = (char *)*s;
    const unsigned long n = isdigit((unsigned char)**s) ? strtoul(*s, &end, 10) : 0;
    *s = end + (*end == '.');
    return n;
}

int clt_driver_compare(const char *a, const char *b) {
    static const char digits[] = "0123456789";
    a += strcspn(a, digits);
    b += strcspn(b, digits);
    while (isdigit((unsigned char)*a) || isdigit((unsigned char)*b)) {
        const unsigned long x = next_number(&a), y = next_number(&b);
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}

static bool part_of(const char *pattern, const char *text) {
    return !pattern || strcasestr(text, pattern) != NULL;
}

bool clt_quirk_matches(const clt_quirk_row *row, const clt_device_facts *f) {
    if (!part_of(row->platform, f->platform) || !part_of(row->vendor, f->vendor) ||
        !part_of(row->device, f->name))
        return false;
    if (row->types && !(row->types & 1 << f->type)) return false;
    if (row->driver_from && clt_driver_compare(f->driver, row->driver_from) < 0) return false;
    return !row->driver_before || clt_driver_compare(f->driver, row->driver_before) < 0;
}

const clt_quirk_row *clt_quirk_of(const clt_device_facts *f, clt_quirk quirk) {
    for (int i = 0; i < clt_quirk_rows_count; i++)
        if (clt_quirk_rows[i].quirk == quirk && clt_quirk_matches(&clt_quirk_rows[i], f))
            return &clt_quirk_rows[i];
    return NULL;
}

const char *clt_quirk_name(clt_quirk quirk) {
    return quirks[quirk].name;
}

const char *clt_quirk_effect(clt_quirk quirk) {
    return quirks[quirk].effect;
}
