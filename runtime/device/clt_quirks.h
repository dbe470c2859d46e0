/* clt_quirks: what is known of drivers by their name.
 *
 * Nearly everything about a device is probed (clt_probe.h). Some behaviour of a driver can be neither asked
 * for nor measured cheaply: it is listed in the table of clt_quirks.c, one row for each observation, which
 * matches platform, vendor, device, type and driver version. No other file of the runtime compares such a
 * name with a constant.
 *
 * To add a row: copy the example at the head of the table; docs/how-to-add-a-device.md explains it. */
#ifndef CLT_QUIRKS_H
#define CLT_QUIRKS_H

#include "runtime/device/clt_device.h"

/* What the program does differently. clt_quirk_name and clt_quirk_effect say it to the user. */
typedef enum {
    CLT_QUIRK_KEEPS_PROGRAMS,      /* the driver has a program cache of its own */
    CLT_QUIRK_COMPILES_AT_LAUNCH,  /* code is made at the first launch of each work-group size */
    CLT_QUIRK_SLOW_DECLARATIONS,   /* the built-in functions' declarations are read with every program */
    CLT_QUIRK_USES_WAITING_THREAD, /* computes on the thread that waits, beside fewer threads than cores */
    CLT_QUIRK_TAKES_INLINE_ASM, /* inline assembly that the compiler does not know fails the build, no more */
    CLT_QUIRKS
} clt_quirk;

/* For clt_quirk_row.types; added up. */
enum {
    CLT_TYPE_CPU = 1 << CLT_DEVICE_CPU,
    CLT_TYPE_GPU = 1 << CLT_DEVICE_GPU,
    CLT_TYPE_OTHER = 1 << CLT_DEVICE_OTHER
};

/* A row matches a device if every member that is set does. */
typedef struct {
    const char *platform, *vendor, *device; /* part of the text that the driver reports, case ignored */
    int types;                              /* CLT_TYPE_CPU | ...; 0: any */
    const char *driver_from;                /* first driver version with the behaviour: "535.54" */
    const char *driver_before;              /* first driver version without it */
    clt_quirk quirk;
    const char *why; /* the observation that made the row necessary */
} clt_quirk_row;

/* The table. */
extern const clt_quirk_row clt_quirk_rows[];
extern const int clt_quirk_rows_count;

bool clt_quirk_matches(const clt_quirk_row *row, const clt_device_facts *f);
/* The row that puts `quirk` into effect on this device; NULL: it is not in effect. */
const clt_quirk_row *clt_quirk_of(const clt_device_facts *f, clt_quirk quirk);
/* "keeps_programs"; "programs are not stored a second time in cltrain's cache": constants. */
const char *clt_quirk_name(clt_quirk quirk);
const char *clt_quirk_effect(clt_quirk quirk);

/* Below 0, 0 or above 0 as driver version a is older than b, equal or newer: numbers between dots are
 * compared as numbers, from the first digit up to the first other character ("3.1+debian" is 3.1); absent
 * ones count as 0. */
int clt_driver_compare(const char *a, const char *b);

/* A driver as a library that does nothing until an .icd file names it, and a part of its platform's name. */
typedef struct {
    const char *library, *icd, *platform;
} clt_known_driver;
extern const clt_known_driver clt_known_drivers[];
extern const int clt_known_drivers_count;

#endif
