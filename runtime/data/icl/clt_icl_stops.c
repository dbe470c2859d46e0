#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/data/icl/clt_icl_stops.h"

#include <pcre2.h>
#include <string.h>

struct clt_icl_stops {
    pcre2_code *code; /* NULL: there are no stop strings */
};

static clt_status compile(const char *pattern, pcre2_code **out) {
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
    char why[256];
    int error;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return clt_no_memory("a regular expression", strlen(pattern));
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* that of Python's re */
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &at, context);
    pcre2_compile_context_free(context);
    if (*out) return CLT_OK;
    pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    return clt_error(CLT_BAD_CONFIG, "'%.200s' is not a regular expression: %s at offset %zu", pattern, why,
                     (size_t)at);
}

clt_status clt_icl_stops_create(const char *const *stop, size_t n, clt_icl_stops **out) {
    clt_icl_stops *s = clt_calloc(1, sizeof *s);
    clt_str pattern = {0};
    for (size_t i = 0; i < n; i++) clt_str_addf(&pattern, "%s%s", i ? "|" : "", stop[i]);
    clt_status st = n ? compile(pattern.s, &s->code) : CLT_OK;
    clt_str_free(&pattern);
    if (st == CLT_OK)
        *out = s;
    else
        clt_icl_stops_destroy(s);
    return st;
}

void clt_icl_stops_destroy(clt_icl_stops *s) {
    if (!s) return;
    pcre2_code_free(s->code);
    clt_free(s);
}

bool clt_icl_stop_is_pattern(const char *stop) {
    return strpbrk(stop, ".^$*+?{}[]\\|()") != NULL;
}

static clt_status find(const pcre2_code *code, pcre2_match_data *data, const char *text, size_t *bytes) {
    char why[256];
    const int found =
        pcre2_match(code, (PCRE2_SPTR)text, *bytes, 0, 0, data, NULL); /* with PCRE2's limit of steps */
    if (found == PCRE2_ERROR_NOMATCH) return CLT_OK;
    if (found == PCRE2_ERROR_NOMEMORY) return clt_no_memory("the search for a stop string", *bytes);
    if (found >= 0) {
        *bytes = CLT_MIN(*bytes, pcre2_get_ovector_pointer(data)[0]);
        return CLT_OK;
    }
    pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
    return clt_error(CLT_BAD_CONFIG, "early_stopping_criteria fail on a generated text: %s", why);
}

clt_status clt_icl_stops_find(const clt_icl_stops *s, const char *text, size_t *bytes) {
    *bytes = strlen(text);
    if (!s->code) return CLT_OK;
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (!data) return clt_no_memory("the search for a stop string", *bytes);
    clt_status st = find(s->code, data, text, bytes);
    pcre2_match_data_free(data);
    return st;
}
