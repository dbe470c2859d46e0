/* Which component serves which URL, and what the storage of a path can do. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/clt_io_component.h"

enum { MAX_COMPONENTS = 32, MAX_KEY = 256 };

static const char file_scheme[] = "file";

/* --- the registry --- */

typedef struct {
    char key[MAX_KEY]; /* "SCHEME" or "SCHEME://AUTHORITY" */
    clt_io_component *c;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry entries[MAX_COMPONENTS];
static int n_entries;

static entry *entry_of(const char *key) {
    for (int i = 0; i < n_entries; i++)
        if (!strcasecmp(entries[i].key, key)) return &entries[i];
    return NULL;
}

static bool is_key(const char *key) {
    char *url = clt_format("%s://", key);
    size_t scheme = clt_path_scheme(key);
    bool good = strlen(key) < MAX_KEY &&
                (scheme ? key[scheme] && !strchr(key + scheme, '/') : clt_path_scheme(url) == strlen(url));
    clt_free(url);
    return good;
}

clt_status clt_io_register(const char *key, clt_io_component *c) {
    if (!is_key(key))
        return clt_error(CLT_FAIL, "'%s' is neither SCHEME nor SCHEME://AUTHORITY: no storage can serve it",
                         key);
    pthread_mutex_lock(&lock);
    entry *e = entry_of(key);
    bool full = !e && n_entries == MAX_COMPONENTS;
    if (!e && !full) {
        e = &entries[n_entries++];
        snprintf(e->key, sizeof e->key, "%s", key);
    }
    if (e) e->c = c;
    pthread_mutex_unlock(&lock);
    return full ? clt_error(CLT_FAIL, "%s: more than %d kinds of storage are registered", key, MAX_COMPONENTS)
                : CLT_OK;
}

void clt_io_unregister(const char *key) {
    pthread_mutex_lock(&lock);
    entry *e = entry_of(key);
    if (e) *e = entries[--n_entries];
    pthread_mutex_unlock(&lock);
}

/* The component registered for a URL whose scheme and authority have these lengths ("SCHEME://" included). */
static clt_io_component *lookup(const char *url, size_t scheme, size_t authority) {
    clt_io_component *found = NULL;
    size_t best = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_entries; i++) {
        size_t n = strlen(entries[i].key);
        bool fits = n + 3 == scheme || n == scheme + authority;
        if (!fits || n <= best || strncasecmp(entries[i].key, url, n)) continue;
        best = n;
        found = entries[i].c;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int clt_io_find(const char *path, clt_io_component **c, const char **name) {
    size_t scheme = clt_path_scheme(path);
    const bool file = scheme == 0 || (scheme == sizeof file_scheme + 2 &&
                                      !strncasecmp(path, file_scheme, sizeof file_scheme - 1));
    *name = path + scheme;
    *c = scheme ? lookup(path, scheme, strcspn(*name, "/")) : lookup("file://", sizeof file_scheme + 2, 0);
    if (file && !*c) *c = clt_io_local();
    if (file && scheme && **name != '/') *c = NULL; /* file://HOST/... is on another machine */
    return *c ? 0 : EPROTONOSUPPORT;
}

/* --- messages --- */

static void list_known(clt_str *out) {
    clt_str_add(out, "known are plain paths and file:///");
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_entries; i++)
        if (strcmp(entries[i].key, file_scheme))
            clt_str_addf(out, ", %s%s", entries[i].key, strstr(entries[i].key, "://") ? "" : "://");
    pthread_mutex_unlock(&lock);
}

/* The object stores that LLM Foundry's users write, but for s3://. */
static bool is_object_store(const char *path) {
    static const char *const schemes[] = {"gs://", "oci://", "azure://", "r2://", "hf://"};
    for (size_t i = 0; i < CLT_COUNT_OF(schemes); i++)
        if (!strncasecmp(path, schemes[i], strlen(schemes[i]))) return true;
    return false;
}

char *clt_io_unsupported(const char *path) {
    clt_io_component *c;
    const char *name;
    clt_str why = {0};
    if (clt_io_find(path, &c, &name) == 0) return NULL;
    const int scheme = (int)(name - path);
    if (!strncasecmp(path, "s3://", 5))
        clt_str_add(&why, "this cltrain was built without network access (CURL=0)");
    else if (is_object_store(path))
        clt_str_addf(&why,
                     "%.*s is not supported, but every store with an S3-compatible endpoint is: s3:// with "
                     "AWS_ENDPOINT_URL",
                     scheme, path);
    else if (!strncasecmp(path, "file://", 7))
        clt_str_add(&why, "a file:// URL names an absolute path: file:///FOLDER/NAME");
    else
        clt_str_addf(&why, "no storage serves %.*s", scheme, path);
    clt_str_add(&why, "; ");
    list_known(&why);
    return why.s;
}

static const struct {
    clt_io_capability cap;
    const char *does;
} abilities[] = {
    {CLT_IO_CAN_RENAME, "rename"},
    {CLT_IO_CAN_EXCHANGE, "exchange names"},
    {CLT_IO_CAN_APPEND, "append to a file"},
    {CLT_IO_CAN_CREATE_NEW, "create a file only if it is absent"},
    {CLT_IO_CAN_LOCK, "lock"},
    {CLT_IO_CAN_READ_RANGES, "read parts of a file"},
    {CLT_IO_CAN_WRITE_RANGES, "write a file in any order"},
    {CLT_IO_HAS_FOLDERS, "keep folders"},
    {CLT_IO_APPEARS_WHOLE, "publish a file when it is closed"},
    {CLT_IO_HAS_VERSIONS, "replace a file on condition"},
};

bool clt_io_can(const char *path, unsigned caps) {
    clt_io_component *c;
    const char *name;
    return clt_io_find(path, &c, &name) == 0 && (c->caps & caps) == caps;
}

clt_status clt_io_require(const char *path, unsigned caps, const char *what) {
    clt_io_component *c;
    const char *name;
    if (clt_io_find(path, &c, &name) != 0) {
        char *why = clt_io_unsupported(path);
        clt_error(CLT_BAD_CONFIG, "%s: %s", path, why);
        clt_free(why);
        return CLT_BAD_CONFIG;
    }
    for (size_t i = 0; i < CLT_COUNT_OF(abilities); i++)
        if (caps & abilities[i].cap & ~c->caps)
            return clt_error(CLT_BAD_CONFIG, "%s: %s needs storage that can %s; storage '%s' cannot", path,
                             what, abilities[i].does, c->ops->name);
    return CLT_OK;
}
