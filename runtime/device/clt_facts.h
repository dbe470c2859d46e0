/* clt_facts: the probed facts of clt_device_facts as a table, for code that stores, prints or sets any of
 * them. Code that asks for one fact reads its field. clt_facts.def lists them; exact_reason, which is text,
 * is apart. */
#ifndef CLT_FACTS_H
#define CLT_FACTS_H

#include "runtime/device/clt_device.h"

/* CLT_FACT_wgmma and so on: for (int i = 1; i < CLT_FACTS; i++) goes over all of them. */
typedef enum {
    CLT_FACT_NONE,
#define CLT_FACT(type, name) CLT_FACT_##name,
#include "runtime/device/clt_facts.def"
#undef CLT_FACT
    CLT_FACTS
} clt_fact;

const char *clt_fact_name(clt_fact i); /* "wgmma" */
/* The value as JSON has it (true, false or a number), written into text (at least 32 bytes) and returned. */
const char *clt_fact_text(const clt_device_facts *f, clt_fact i, char *text);
/* Sets the value from what clt_fact_text wrote; false, and nothing is set, if the text is something else. */
bool clt_fact_parse(clt_device_facts *f, clt_fact i, const char *text);
/* Sets the value: a bool is value != 0; integers are exact up to 2^53. */
void clt_fact_set(clt_device_facts *f, clt_fact i, double value);

#endif
