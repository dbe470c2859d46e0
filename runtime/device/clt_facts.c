#include "runtime/device/clt_facts.h"

#include <string.h>

typedef enum { KIND_bool, KIND_uint32_t, KIND_uint64_t, KIND_double } kind;

static const struct {
    const char *name;
    kind kind;
    size_t offset;
} facts[CLT_FACTS] = {
#define CLT_FACT(type, name) [CLT_FACT_##name] = {#name, KIND_##type, offsetof(clt_device_facts, name)},
#include "runtime/device/clt_facts.def"
#undef CLT_FACT
};

const char *clt_fact_name(clt_fact i) {
    return facts[i].name;
}

const char *clt_fact_text(const clt_device_facts *f, clt_fact i, char *text) {
    const void *at = (const char *)f + facts[i].offset;
    switch (facts[i].kind) {
    case KIND_bool:
        snprintf(text, 32, "%s", *(const bool *)at ? "true" : "false");
        break;
    case KIND_uint32_t:
        snprintf(text, 32, "%u", *(const uint32_t *)at);
        break;
    case KIND_uint64_t:
        snprintf(text, 32, "%llu", (unsigned long long)*(const uint64_t *)at);
        break;
    case KIND_double:
        snprintf(text, 32, "%.3f", *(const double *)at);
        break;
    }
    return text;
}

void clt_fact_set(clt_device_facts *f, clt_fact i, double value) {
    void *at = (char *)f + facts[i].offset;
    switch (facts[i].kind) {
    case KIND_bool:
        *(bool *)at = value != 0;
        break;
    case KIND_uint32_t:
        *(uint32_t *)at = (uint32_t)value;
        break;
    case KIND_uint64_t:
        *(uint64_t *)at = (uint64_t)value;
        break;
    case KIND_double:
        *(double *)at = value;
        break;
    }
}

bool clt_fact_parse(clt_device_facts *f, clt_fact i, const char *text) {
    const bool yes = strcmp(text, "true") == 0, no = strcmp(text, "false") == 0;
    double number = yes;
    if (facts[i].kind == KIND_bool ? !yes && !no : !clt_parse_f64(text, &number) || !(number >= 0))
        return false;
    clt_fact_set(f, i, number);
    return true;
}
