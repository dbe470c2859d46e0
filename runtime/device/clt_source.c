/* Kernel texts, with their includes expanded: from the table that tools/build/embed.c makes, or from files.
 */
#include "runtime/device/clt_device_private.h"

#include <pthread.h>
#include <string.h>

#include "runtime/base/clt_io.h"

typedef struct {
    const char *name;
    const unsigned char *text;
    unsigned long bytes;
} clt_embedded_file;
extern const clt_embedded_file clt_embedded[];
extern const int clt_embedded_count;

enum { MAX_DEPTH = 16, MAX_FILE = 4 << 20 };

/* Expanded texts are kept until the process ends: callers borrow them. */
static struct { char *file, *text; } * expanded;
static int expanded_n, expanded_cap;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int clt_kernel_file_count(void) {
    return clt_embedded_count;
}

const char *clt_kernel_file_name(int i) {
    return i >= 0 && i < clt_embedded_count ? clt_embedded[i].name : NULL;
}

/* Where texts come from. */
typedef enum { FROM_PATH, BUILT_IN } origin;

/* The folder that CLTRAIN_KERNEL_PATH names is clkernels/ itself or holds it. */
static char *disk_path(const char *file) {
    const char *root = clt_env(CLT_ENV_KERNEL_PATH);
    if (!root) return NULL;
    char *inner = clt_path_join(root, "clkernels");
    char *path = clt_path_join(clt_io_is_dir(inner) ? inner : root, file);
    clt_free(inner);
    return path;
}

static char *load_built_in(const char *file) {
    for (int i = 0; i < clt_embedded_count; i++)
        if (strcmp(clt_embedded[i].name, file) == 0)
            return clt_strndup((const char *)clt_embedded[i].text, clt_embedded[i].bytes);
    return NULL;
}

/* The raw text of a file under clkernels/, malloc'ed, or NULL. */
static char *load(const char *file, origin from) {
    char *text = NULL, *path = from == BUILT_IN ? NULL : disk_path(file);
    if (!path) return load_built_in(file);
    if (clt_path_is_safe(file) && clt_io_is_file(path) &&
        clt_io_read_all(path, MAX_FILE, &text, NULL) != CLT_OK)
        text = NULL;
    clt_free(path);
    return text;
}

/* `rel` as seen from the folder of `file`, with . and .. resolved; NULL if it leaves clkernels/. */
static char *resolve(const char *file, const char *rel) {
    const char *slash = strrchr(file, '/');
    clt_str b = {0};
    clt_str_addn(&b, file, slash ? (size_t)(slash - file) : 0);
    for (const char *s = rel; *s;) {
        size_t n = strcspn(s, "/");
        if (n == 2 && s[0] == '.' && s[1] == '.') {
            if (b.len == 0) {
                clt_str_free(&b);
                return NULL;
            }
            char *up = strrchr(b.s, '/');
            b.len = up ? (size_t)(up - b.s) : 0;
            b.s[b.len] = 0;
        } else if (n > 0 && !(n == 1 && s[0] == '.')) {
            if (b.len) clt_str_add(&b, "/");
            clt_str_addn(&b, s, n);
        }
        s += n + (s[n] == '/');
    }
    return b.s;
}

/* The file that a line `#include "x"` names, malloc'ed; NULL for every other line. */
static char *include_of(const char *line, size_t len) {
    const char *s = line, *end = line + len;
    while (s < end && (*s == ' ' || *s == '\t')) s++;
    if (s == end || *s++ != '#') return NULL;
    while (s < end && (*s == ' ' || *s == '\t')) s++;
    if (end - s < 7 || strncmp(s, "include", 7) != 0) return NULL;
    for (s += 7; s < end && (*s == ' ' || *s == '\t');) s++;
    if (s == end || *s++ != '"') return NULL;
    const char *close = memchr(s, '"', (size_t)(end - s));
    return close ? clt_strndup(s, (size_t)(close - s)) : NULL;
}

static void expand(clt_str *out, const char *file, const char *text, origin from, int depth) {
    int number = 1;
    for (const char *line = text; *line; number++) {
        size_t len = strcspn(line, "\n"), whole = len + (line[len] == '\n');
        char *rel = include_of(line, len);
        if (!rel) {
            clt_str_addn(out, line, whole);
        } else {
            char *path = resolve(file, rel), *inner = path && depth < MAX_DEPTH ? load(path, from) : NULL;
            if (inner) {
                clt_str_addf(out, "#line 1 \"%s\"\n", path);
                expand(out, path, inner, from, depth + 1);
                clt_str_addf(out, "\n#line %d \"%s\"\n", number + 1, file);
            } else {
                clt_str_addf(out, "#error \"kernel file %s does not exist, or includes nest too deep\"\n",
                             rel);
            }
            clt_free(inner);
            clt_free(path);
            clt_free(rel);
        }
        line += whole;
    }
}

static char *expanded_text(const char *file, const char *text, origin from) {
    clt_str b = {0};
    clt_str_add(&b, "");
    expand(&b, file, text, from, 0);
    return b.s;
}

char *clt_source_expand(const char *file, const char *text) {
    return expanded_text(file, text, FROM_PATH);
}

char *clt_source_probe(const char *file) {
    origin from = FROM_PATH;
    char *raw = load(file, from), *text = NULL;
    if (!raw) raw = load(file, from = BUILT_IN);
    if (raw) text = expanded_text(file, raw, from);
    clt_free(raw);
    return text;
}

const char *clt_kernel_text(const char *file) {
    pthread_mutex_lock(&lock);
    const char *text = NULL;
    for (int i = 0; i < expanded_n && !text; i++)
        if (strcmp(expanded[i].file, file) == 0) text = expanded[i].text;
    char *raw = text ? NULL : load(file, FROM_PATH);
    if (raw) {
        if (expanded_n == expanded_cap) {
            expanded_cap = expanded_cap ? 2 * expanded_cap : 32;
            expanded = clt_realloc(expanded, (size_t)expanded_cap * sizeof *expanded);
        }
        expanded[expanded_n].file = clt_strdup(file);
        expanded[expanded_n].text = clt_source_expand(file, raw);
        text = expanded[expanded_n++].text;
        clt_free(raw);
    }
    pthread_mutex_unlock(&lock);
    return text;
}
