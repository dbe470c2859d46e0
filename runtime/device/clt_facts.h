/* clt_facts: the probed facts of clt_device_facts as a table, for code that stores, prints or sets all of
 * them. Code that needs one fact reads its member. clt_facts.def lists the facts; exact_reason, which is
 * text, is not part of the table. Arguments of type clt_fact must name a fact: not CLT_FACT_NONE, not
 * CLT_FACTS. */
#ifndef CLT_FACTS_H
#define CLT_FACTS_H

#include "runtime/device/clt_device.h"

/* One enumerator per fact, such as CLT_FACT_wgmma; for (int i = 1; i < CLT_FACTS; i++) goes over all of them.
 */
typedef enum {
    CLT_FACT_NONE,
#define CLT_FACT(type, name) CLT_FACT_##name,
#include "runtime/device/clt_facts.def"
#undef CLT_FACT
    CLT_FACTS
} clt_fact;

const char *clt_fact_name(clt_fact i); /* a constant: "wgmma" */
/* Writes the fact's value as JSON (true, false or a number; a double with 3 decimals) into `text`, which must
 * have at least 32 bytes, and returns `text`. */
const char *clt_fact_text(const clt_device_facts *f, clt_fact i, char *text);
/* Sets the fact from a text of clt_fact_text. false, and nothing is set: the text is not true or false (for a
 * bool), or not a number of 0 or more. */
bool clt_fact_parse(clt_device_facts *f, clt_fact i, const char *text);
/* Sets the fact: a bool to value != 0, an integer to the value without its fraction (exact up to 2^53). */
void clt_fact_set(clt_device_facts *f, clt_fact i, double value);

#endif
