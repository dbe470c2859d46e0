/* clt_quirks: what is known of drivers by their name.
 *
 * Nearly everything about a device is probed (clt_probe.h). Some behaviour of a driver can be neither asked
 * for nor measured cheaply: it is listed in the table of clt_quirks.c, one row for each observation, which
 * matches platform, vendor, device, type and driver version. No other file of the runtime compares such a
 * name with a constant. The strings and tables here are constants.
 *
 * To add a row: copy the example at the head of the table; docs/how-to-add-a-device.md explains it. */
#ifndef CLT_QUIRKS_H
#define CLT_QUIRKS_H

#include "runtime/device/clt_device.h"

/* The kinds of behaviour. clt_quirk_name and clt_quirk_effect describe them to the user. */
typedef enum {
    CLT_QUIRK_KEEPS_PROGRAMS,     /* the driver has a program cache of its own */
    CLT_QUIRK_COMPILES_AT_LAUNCH, /* it compiles a kernel at the first launch with each work-group size */
    CLT_QUIRK_SLOW_DECLARATIONS,  /* it reads the declarations of all built-in functions with every program */
    CLT_QUIRK_USES_WAITING_THREAD, /* it computes on a thread that waits too, and has fewer threads than cores
                                    */
    CLT_QUIRK_TAKES_INLINE_ASM, /* inline assembly is safe to try: if unknown, the build fails, nothing worse
                                 */
    CLT_QUIRK_DIES_OF_INLINE_ASM, /* it ends the process that builds a kernel with inline assembly */
    CLT_QUIRKS
} clt_quirk;

/* Bits of clt_quirk_row.types. */
enum {
    CLT_TYPE_CPU = 1 << CLT_DEVICE_CPU,
    CLT_TYPE_GPU = 1 << CLT_DEVICE_GPU,
    CLT_TYPE_OTHER = 1 << CLT_DEVICE_OTHER
};

/* A row matches a device if each of its members before `quirk` is unset (NULL, 0) or matches. */
typedef struct {
    const char *platform, *vendor,
        *device;               /* a part of the text that the driver reports, in any case of letters */
    int types;                 /* sum of CLT_TYPE_*; 0: any type */
    const char *driver_from;   /* first driver version with the behaviour: "535.54" */
    const char *driver_before; /* first driver version without it */
    clt_quirk quirk;
    const char *why; /* the observation that made the row necessary */
} clt_quirk_row;

/* The table: clt_quirk_rows_count rows. */
extern const clt_quirk_row clt_quirk_rows[];
extern const int clt_quirk_rows_count;

/* Whether `row` matches the device with the facts f, of which what the driver reports is used. */
bool clt_quirk_matches(const clt_quirk_row *row, const clt_device_facts *f);
/* The first row with `quirk` that matches the device; NULL: the quirk is not in effect. */
const clt_quirk_row *clt_quirk_of(const clt_device_facts *f, clt_quirk quirk);
/* The quirk's short name, such as "keeps_programs". */
const char *clt_quirk_name(clt_quirk quirk);
/* What cltrain does differently because of the quirk, as a phrase for the user. */
const char *clt_quirk_effect(clt_quirk quirk);

/* A number below 0, 0, or above 0: driver version a is older than b, equal, or newer. A version begins at the
 * first digit of the text and ends before the first character that is neither a digit nor a dot ("3.1+debian"
 * is 3.1). Its parts between dots are compared as integers; a missing part counts as 0. */
int clt_driver_compare(const char *a, const char *b);

/* A driver: its library, the .icd file that must name the library before OpenCL finds it, and a part of its
 * platform's name. */
typedef struct {
    const char *library, *icd, *platform;
} clt_known_driver;
extern const clt_known_driver clt_known_drivers[];
extern const int clt_known_drivers_count;

#endif
