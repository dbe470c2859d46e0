#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/data/tokenizer/clt_splitter.h"

#include <pcre2.h>
#include <string.h>

#include "runtime/data/tokenizer/clt_codepoint.h"

/* --- patterns --- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
const char clt_pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char clt_pattern_llama3[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
const char clt_pattern_qwen2[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
const char clt_pattern_o200k[] =
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
    "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;

bool clt_pattern_known(const char *pattern) {
    static const char *const known[] = {clt_pattern_gpt2, clt_pattern_llama3, clt_pattern_qwen2,
                                        clt_pattern_o200k};
    for (size_t i = 0; i < CLT_COUNT_OF(known); i++)
        if (strcmp(pattern, known[i]) == 0) return true;
    return false;
}

/* --- character classes --- */

/* What \s and \w are in the package's regular expressions (Oniguruma), where they are something else in those
 * of PCRE2: U+180E is no space, and words have marks, circled letters, but few numbers that are no digits. A
 * class does not end in a character, because a hyphen may follow. */
#define SPACE_CLASS "\\x{09}-\\x{0d}\\x{85}\\x{2028}\\x{2029}\\p{Zs}"
#define OTHER_THAN_SPACE                                                                                     \
    "\\x{00}-\\x{08}\\x{0e}-\\x{1f}\\x{7f}-\\x{84}\\x{86}-\\x{9f}\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}"             \
    "\\p{Cf}\\p{Cn}\\p{Co}\\p{Cs}"
#define WORD_CLASS                                                                                           \
    "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"      \
    "\\x{1f170}-\\x{1f189}\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"

/* What the escape at `at` stands for, alone or inside of [...]; NULL: it remains, or there is none. */
static const char *class_of(const char *at, bool inside) {
    if (*at != '\\') return NULL;
    switch (at[1]) {
    case 's':
        return inside ? SPACE_CLASS : "[" SPACE_CLASS "]";
    case 'S':
        return inside ? OTHER_THAN_SPACE : "[^" SPACE_CLASS "]";
    case 'w':
        return inside ? WORD_CLASS : "[" WORD_CLASS "]";
    case 'W':
        return inside ? NULL : "[^" WORD_CLASS "]";
    default:
        return NULL;
    }
}

static clt_status unsupported(const char *what, const char *part, const char *pattern) {
    return clt_error(CLT_BAD_CONFIG, "%s: pre_tokenizer: %s inside of [...] is not supported in '%.200s'",
                     what, part, pattern);
}

/* Appends the n bytes at `at`, or what they stand for. */
static void append(clt_str *out, const char *at, size_t n, const char *set) {
    if (set)
        clt_str_add(out, set);
    else
        clt_str_addn(out, at, n);
}

static size_t escape_length(const char *at) {
    return *at == '\\' && at[1] ? 2 : 1;
}

/* Appends the class that begins at *at, without its end ], to which *at is moved. */
static clt_status translate_class(const char *pattern, const char *what, const char **at, clt_str *out) {
    const char *c = *at + 1;
    if (*c == '^') c++;
    if (*c == ']') c++; /* a character */
    append(out, *at, (size_t)(c - *at), NULL);
    while (*c && *c != ']') {
        const char *posix = c[0] == '[' && c[1] == ':' ? strstr(c, ":]") : NULL;
        const size_t n = posix ? (size_t)(posix + 2 - c) : escape_length(c);
        if (*c == '[' && !posix) return unsupported(what, "a class", pattern);
        if (c[0] == '&' && c[1] == '&') return unsupported(what, "&&", pattern);
        if (c[0] == '\\' && c[1] == 'W') return unsupported(what, "\\W", pattern);
        append(out, c, n, class_of(c, true));
        c += n;
    }
    *at = c;
    return CLT_OK;
}

/* Appends the pattern with the package's classes. */
static clt_status translate(const char *pattern, const char *what, clt_str *out) {
    clt_str_add(out, ""); /* also of an empty pattern */
    for (const char *at = pattern; *at;) {
        const size_t n = escape_length(at);
        if (*at == '[') {
            CLT_TRY(translate_class(pattern, what, &at, out));
            continue;
        }
        append(out, at, n, class_of(at, false));
        at += n;
    }
    return CLT_OK;
}

/* --- splitters --- */

struct clt_splitter {
    clt_split_behavior behavior;
    pcre2_code *code; /* NULL: `text` is searched */
    bool jit;
    char *text;
    size_t text_bytes;
};

static clt_status compile(const char *pattern, const char *what, pcre2_code **out) {
    int error;
    PCRE2_SIZE at;
    clt_str text = {0};
    clt_status st = translate(pattern, what, &text);
    *out = NULL;
    if (st == CLT_OK)
        *out = pcre2_compile((PCRE2_SPTR)text.s, text.len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, NULL);
    if (st == CLT_OK && !*out) {
        char why[256];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        st = clt_error(CLT_BAD_DATA, "%s: pre_tokenizer: '%.200s' is not a regular expression: %s", what,
                       pattern, why);
    }
    clt_str_free(&text);
    return st;
}

clt_status clt_splitter_create(const char *pattern, clt_split_behavior behavior, const char *what,
                               clt_splitter **out) {
    pcre2_code *code;
    CLT_TRY(compile(pattern, what, &code));
    clt_splitter *s = clt_calloc(1, sizeof *s);
    *s = (clt_splitter){.behavior = behavior, .code = code};
    s->jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    *out = s;
    return CLT_OK;
}

clt_status clt_splitter_create_text(const char *pattern, clt_split_behavior behavior, clt_splitter **out) {
    clt_splitter *s = clt_calloc(1, sizeof *s);
    *s = (clt_splitter){.behavior = behavior, .text = clt_strdup(pattern), .text_bytes = strlen(pattern)};
    *out = s;
    return CLT_OK;
}

void clt_splitter_destroy(clt_splitter *s) {
    if (!s) return;
    pcre2_code_free(s->code);
    clt_free(s->text);
    clt_free(s);
}

/* --- work space --- */

/* Patterns of tokenizers need a few kB of stack on any text, and steps in proportion to its length; the
 * limits stop hostile ones. */
enum { STACK_BYTES = 32 << 10, MAX_STACK_BYTES = 8 << 20, MATCH_LIMIT = 10000000, STEPS_PER_BYTE = 8 };

struct clt_split_work {
    pcre2_match_data *data;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
};

clt_split_work *clt_split_work_create(void) {
    clt_split_work *w = clt_calloc(1, sizeof *w);
    w->data = pcre2_match_data_create(1, NULL);
    w->limits = pcre2_match_context_create(NULL);
    w->stack = pcre2_jit_stack_create(STACK_BYTES, MAX_STACK_BYTES, NULL);
    if (!w->data || !w->limits || !w->stack) {
        clt_split_work_destroy(w);
        return NULL;
    }
    pcre2_set_heap_limit(w->limits, MAX_STACK_BYTES >> 10);
    pcre2_jit_stack_assign(w->limits, NULL, w->stack);
    return w;
}

void clt_split_work_destroy(clt_split_work *w) {
    if (!w) return;
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->limits);
    pcre2_jit_stack_free(w->stack);
    clt_free(w);
}

/* --- matches --- */

static clt_status regex_failure(int code, size_t at) {
    char why[256];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return clt_error(code == PCRE2_ERROR_NOMEMORY ? CLT_NO_MEMORY : CLT_BAD_DATA,
                     "the tokenizer's regular expression fails on the text from byte %zu: %s", at, why);
}

/* The first match at or behind s->search, or [bytes, bytes). */
static clt_status find(clt_split *s, size_t *start, size_t *end) {
    const clt_splitter *p = s->splitter;
    *start = *end = s->bytes;
    if (p->text) {
        const char *at = memmem(s->text + s->search, s->bytes - s->search, p->text, p->text_bytes);
        if (!at) return CLT_OK;
        *start = (size_t)(at - s->text);
        *end = *start + p->text_bytes;
        return CLT_OK;
    }
    PCRE2_SPTR text = (PCRE2_SPTR)s->text;
    int code = p->jit ? pcre2_jit_match(p->code, text, s->bytes, s->search, 0, s->work->data, s->work->limits)
                      : pcre2_match(p->code, text, s->bytes, s->search, PCRE2_NO_UTF_CHECK, s->work->data,
                                    s->work->limits);
    if (code == PCRE2_ERROR_NOMATCH) return CLT_OK;
    if (code < 0) return regex_failure(code, s->search);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->work->data);
    *start = CLT_MAX(range[0], s->search); /* \K may set any start */
    *end = CLT_MAX(range[1], *start);
    return CLT_OK;
}

/* The next stretch, which may be empty where a match is empty; none at the end of the text. */
static clt_status read_stretch(clt_split *s) {
    size_t start, end, length = 1;
    s->has_next = true;
    if (s->has_found) {
        s->next = s->found;
        s->has_found = false;
        s->at = s->next.end;
        return CLT_OK;
    }
    CLT_TRY(find(s, &start, &end));
    s->search = end;
    if (end == start && end < s->bytes) clt_codepoint_at(s->text + end, &length);
    if (end == start) s->search = CLT_MIN(end + length, s->bytes);
    s->found = (clt_stretch){start, end, true};
    s->has_found = start > s->at && start < s->bytes;
    s->next = start > s->at ? (clt_stretch){s->at, start, false} : s->found;
    s->at = s->next.end;
    return CLT_OK;
}

/* Makes s->next the next stretch that is not empty. false: there is none. */
static clt_status peek(clt_split *s, bool *any) {
    while (s->has_next || s->has_found || s->at < s->bytes) {
        if (!s->has_next) CLT_TRY(read_stretch(s));
        *any = s->next.end > s->next.start;
        if (*any) return CLT_OK;
        s->has_next = false;
    }
    *any = false;
    return CLT_OK;
}

/* --- pieces --- */

clt_split clt_split_begin(const clt_splitter *s, clt_split_work *w, const char *text, size_t bytes) {
    const size_t steps =
        bytes < UINT32_MAX / STEPS_PER_BYTE ? MATCH_LIMIT + bytes * STEPS_PER_BYTE : UINT32_MAX;
    pcre2_set_match_limit(w->limits, (uint32_t)CLT_MIN(steps, UINT32_MAX));
    return (clt_split){.splitter = s, .work = w, .text = text, .bytes = bytes};
}

/* Whether a stretch belongs to the piece that ends with `last`. */
static bool continues(clt_split_behavior behavior, const clt_stretch *last, const clt_stretch *next) {
    switch (behavior) {
    case CLT_SPLIT_MERGED_WITH_PREVIOUS:
        return !last->separator && next->separator;
    case CLT_SPLIT_MERGED_WITH_NEXT:
        return last->separator && !next->separator;
    case CLT_SPLIT_CONTIGUOUS:
        return last->separator == next->separator;
    default:
        return false;
    }
}

clt_status clt_split_next(clt_split *s, size_t *start, size_t *end) {
    const clt_split_behavior behavior = s->splitter->behavior;
    bool any;
    *start = *end = s->bytes;
    do {
        CLT_TRY(peek(s, &any));
        if (!any) return CLT_OK;
        s->has_next = false;
    } while (behavior == CLT_SPLIT_REMOVED && s->next.separator);
    clt_stretch last = s->next;
    *start = last.start;
    *end = last.end;
    if (behavior == CLT_SPLIT_ISOLATED || behavior == CLT_SPLIT_REMOVED) return CLT_OK;
    for (;;) {
        CLT_TRY(peek(s, &any));
        if (!any || !continues(behavior, &last, &s->next)) return CLT_OK;
        last = s->next;
        *end = last.end;
        s->has_next = false;
    }
}
