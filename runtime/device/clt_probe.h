/* clt_probe: what a device can really do. Each question is one small program under clkernels/probe/, which is
 * built and run, and a row of the table in clt_probe_table.c, which says how to ask it and checks the answer.
 * The facts are stored in the cache under the device's id. A later start asks again only if a probe or a
 * quirk changed, the cache is off or lost, or clt_device_params.reprobe is set.
 *
 * To add a question: a file clkernels/probe/NAME.cl, a line in clt_facts.def, a row with a check function;
 * docs/how-to-add-a-device.md, section 5, goes through an example.
 *
 * A question survives a driver that refuses it: a build or a launch that fails is the answer no, without a
 * message. Where memory or resources ran out the answer holds for this run alone, and nothing is stored. */
#ifndef CLT_PROBE_H
#define CLT_PROBE_H

#include "runtime/device/clt_device_private.h"
#include "runtime/device/clt_facts.h"

/* Which of a row's option sets decides; they are tried in order. If none does, the fact is 0. */
typedef enum {
    CLT_ASK_FIRST_BUILT, /* the first set that builds; if it does not run, the fact is 0 */
    CLT_ASK_FIRST_RUN,   /* the first set that builds and runs */
    CLT_ASK_ALL          /* all sets must give a value other than 0; the last one's value is the fact */
} clt_probe_sets;

/* Input and result of a launch. */
typedef struct {
    const uint32_t *in;
    const void *out; /* uint32_t or float, as the kernel declares */
} clt_probe_answer;

enum { CLT_PROBE_SETS = 4 };

typedef struct clt_probe_row {
    clt_fact fact;    /* the answer becomes its value */
    const char *file; /* under clkernels/, with the kernel probe(in, out); NULL: no kernel */
    const char *options[CLT_PROBE_SETS]; /* sets of build options, up to a NULL */
    clt_probe_sets sets;
    bool (*applies)(const clt_device *dev); /* false: not asked, and the fact is 0; NULL: always asked */
    uint32_t items, group;                  /* work-items of the launch and of a work-group; 0: 64 */
    uint32_t in, out;                       /* sizes of the two buffers in units of 4 bytes; 0: 64 */
    void (*fill)(uint32_t *in);             /* writes the input; NULL: in[i] = i */
    /* Returns the value of the fact, 0 for a wrong answer. It may set other facts in f. */
    double (*check)(const clt_probe_answer *a, clt_device_facts *f);
    clt_fact built; /* this fact is set to whether options[0] builds; CLT_FACT_NONE: no fact */
    /* If set, it is called to find the value, and of the other members only fact, file and applies have an
     * effect. text: that of `file`, with includes expanded, or NULL.
     */
    double (*ask)(clt_device *dev, const struct clt_probe_row *row, const char *text);
} clt_probe_row;

/* The table, in the order in which the questions are asked: `applies` may use the facts of earlier rows. */
extern const clt_probe_row clt_probe_rows[];
extern const int clt_probe_rows_count;

/* Asks one row and returns the value of its fact, which the caller stores; other facts that its check finds
 * are set in dev->facts. */
double clt_probe_ask(clt_device *dev, const clt_probe_row *row);

/* clt_probe_measure.c: functions for `ask`. They return the largest local array of a kernel in bytes, and the
 * rate of copies from pinned memory in GB/s (0: the driver refuses, or the device has little memory). */
double clt_probe_local_mem(clt_device *dev, const clt_probe_row *row, const char *text);
double clt_probe_copy(clt_device *dev, const clt_probe_row *row, const char *text);

/* Builds `source` with exactly these options, in two passes if it is marked (clt_ptx.h), without a message;
 * NULL if it does not build. The caller releases the program. */
cl_program clt_probe_build(clt_device *dev, const char *source, const char *options);
/* Runs kernel `probe(in, out)` of p once with `items` work-items in work-groups of `group`, and waits. out is
 * filled with 0xff bytes before. false, without a message: the driver refuses anything, or the device hangs
 * (dev->hung). */
bool clt_probe_run(clt_device *dev, cl_program p, const void *in, size_t in_bytes, void *out,
                   size_t out_bytes, size_t items, size_t group);

/* Fills the probed part of dev->facts, from the cache or by asking. If memory or resources run out meanwhile,
 * it warns, stores nothing and returns CLT_OK. CLT_AGAIN if the device hangs, CLT_FAIL if the text of a probe
 * is missing. */
clt_status clt_probe(clt_device *dev);
/* Whether the cache has a file of facts of this device, which may be outdated. false with reprobe. */
bool clt_probe_is_stored(const clt_device *dev);

#endif
