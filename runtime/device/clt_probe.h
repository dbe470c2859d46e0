/* clt_probe: what a device can really do. Each question is one small program under clkernels/probe/, which is
 * built and run, and a row of the table in clt_probe_table.c, which says how to ask it and checks the answer.
 * The facts are stored in the cache under the device's id, so only the first start on a device asks.
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

/* Which of a row's option sets decide. */
typedef enum {
    CLT_ASK_FIRST_BUILT, /* the first one that builds */
    CLT_ASK_FIRST_RUN,   /* the first one that builds and runs */
    CLT_ASK_ALL          /* all: each has to give a right answer, and the last one gives the value */
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
    uint32_t items, group;                  /* of the launch; 0: 64 */
    uint32_t in, out;                       /* words (4 bytes) of the two buffers; 0: 64 */
    void (*fill)(uint32_t *in);             /* NULL: in[i] = i */
    /* The value of the fact: 0 for a wrong answer. It may set other facts in f. */
    double (*check)(const clt_probe_answer *a, clt_device_facts *f);
    clt_fact built; /* fact that says whether options[0] builds; CLT_FACT_NONE: none */
    /* If set, it is called instead, and the members from `options` on have no effect. text: that of `file`.
     */
    double (*ask)(clt_device *dev, const struct clt_probe_row *row, const char *text);
} clt_probe_row;

/* The table, in the order in which the questions are asked: `applies` may use the facts of earlier rows. */
extern const clt_probe_row clt_probe_rows[];
extern const int clt_probe_rows_count;

/* Asks one row and returns the value of its fact; other facts that its check finds are set in dev->facts. */
double clt_probe_ask(clt_device *dev, const clt_probe_row *row);

/* clt_probe_measure.c: for `ask`. */
double clt_probe_local_mem(clt_device *dev, const clt_probe_row *row, const char *text);
double clt_probe_copy(clt_device *dev, const clt_probe_row *row, const char *text);

/* Builds `source` with exactly these options, without a message; NULL if it does not build. */
cl_program clt_probe_build(clt_device *dev, const char *source, const char *options);
/* Runs kernel `probe(in, out)` once over `items` in groups of `group`; false if the driver refuses anything.
 */
bool clt_probe_run(clt_device *dev, cl_program p, const void *in, size_t in_bytes, void *out,
                   size_t out_bytes, size_t items, size_t group);

/* Fills the probed part of dev->facts, from the cache or by asking. CLT_AGAIN if the device hangs, CLT_FAIL
 * if the text of a probe is missing. */
clt_status clt_probe(clt_device *dev);
/* Whether the cache has facts of this device. */
bool clt_probe_is_stored(const clt_device *dev);

#endif
