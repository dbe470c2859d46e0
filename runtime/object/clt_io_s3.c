/* The component of clt_io for s3://: names, versions, and what unfinished uploads left. */
#include <errno.h>
#include <string.h>

#include "runtime/object/clt_io_s3.h"
#include "runtime/object/clt_io_s3_internal.h"

enum { MAX_KEY = 1024 }; /* bytes, of S3 */

/* --- places --- */

static int make_store(clt_io_s3 *c) {
    clt_s3_config config;
    const char *text = clt_env(CLT_ENV_S3_TIMEOUT);
    double seconds = 600;
    if (text && *text && !(clt_parse_f64(text, &seconds) && seconds > 0 && seconds < 1e6))
        return clt_s3_fail(ENOKEY, "CLTRAIN_S3_TIMEOUT: '%s' is no number of seconds", text);
    clt_error_quiet(true);
    clt_status st = clt_s3_config_read(&config);
    clt_error_quiet(false);
    if (st == CLT_NO_MEMORY) return ENOMEM;
    if (st == CLT_STOPPED) return ECANCELED;
    if (st != CLT_OK) return clt_s3_fail(ENOKEY, "%s", clt_last_error());
    c->store = clt_s3_create(&config, seconds);
    return 0;
}

static bool is_plain(const char *text) {
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        if (*s < ' ' || *s == 127) return false;
    return true;
}

int clt_s3_place_of(clt_io_component *component, const char *path, clt_s3_place *out) {
    clt_io_s3 *c = (clt_io_s3 *)component;
    size_t n = strcspn(path, "/");
    clt_s3_forget();
    *out = (clt_s3_place){.bucket = clt_strndup(path, n), .key = clt_strdup(path + n + (path[n] != 0))};
    for (size_t m = strlen(out->key); m && out->key[m - 1] == '/'; m--) out->key[m - 1] = 0;
    if (!is_plain(path)) return clt_s3_fail(EINVAL, "the name has control characters");
    if (strlen(out->key) > MAX_KEY)
        return clt_s3_fail(ENAMETOOLONG, "the key has more than %d bytes", MAX_KEY);
    if (*out->key && !clt_path_is_safe(out->key))
        return clt_s3_fail(EINVAL, "a key may not have empty, '.' or '..' components");
    pthread_mutex_lock(&c->lock);
    int e = c->store ? 0 : make_store(c);
    out->store = c->store;
    pthread_mutex_unlock(&c->lock);
    return e;
}

void clt_s3_place_free(clt_s3_place *p) {
    clt_free(p->bucket);
    clt_free(p->key);
    *p = (clt_s3_place){0};
}

/* What all keys below a folder begin with. To be freed. */
static char *below(const clt_s3_place *p) {
    return *p->key ? clt_format("%s/", p->key) : clt_strdup("");
}

/* --- names --- */

/* A name of the list; those that no path can have are passed over: empty ones (the marker of a folder),
 * "." and "..", with control characters, with a slash. */
static void add_name(clt_strv *names, const char *name, size_t n) {
    char *copy = clt_strndup(name, n);
    if (*copy && !strchr(copy, '/') && clt_path_is_safe(copy) && is_plain(copy))
        clt_strv_add_owned(names, copy);
    else
        clt_free(copy);
}

/* An object and a folder may have one name. `from`: where the list begins. */
static void drop_doubles(clt_strv *names, size_t from) {
    clt_strv mine = {names->v + from, names->n - from, 0};
    size_t kept = 0;
    clt_strv_sort(&mine);
    for (size_t i = 0; i < mine.n; i++)
        if (kept && !strcmp(mine.v[kept - 1], mine.v[i]))
            clt_free(mine.v[i]);
        else
            mine.v[kept++] = mine.v[i];
    names->n = from + kept;
}

static int s3_list(clt_io_component *c, const char *path, clt_strv *names) {
    clt_s3_place p;
    clt_s3_listing l = {0};
    int e = clt_s3_place_of(c, path, &p);
    char *prefix = below(&p);
    const size_t skip = strlen(prefix), from = names->n;
    if (!e) e = clt_s3_list(p.store, p.bucket, prefix, "/", 0, &l);
    for (size_t i = 0; i < l.n && !e; i++)
        add_name(names, l.objects[i].key + skip, strlen(l.objects[i].key) - skip);
    for (size_t i = 0; i < l.prefixes.n && !e; i++) {
        const char *name = l.prefixes.v[i] + skip;
        size_t n = strlen(name);
        add_name(names, name, n && name[n - 1] == '/' ? n - 1 : n);
    }
    drop_doubles(names, from);
    clt_s3_listing_free(&l);
    clt_free(prefix);
    clt_s3_place_free(&p);
    return e;
}

static int stat_folder(const clt_s3_place *p, clt_io_info *out) {
    clt_s3_listing l = {0};
    char *prefix = below(p);
    int e = clt_s3_list(p->store, p->bucket, prefix, NULL, 1, &l);
    if (!e && (l.n || !*p->key)) out->kind = CLT_IO_FOLDER;
    clt_s3_listing_free(&l);
    clt_free(prefix);
    return e;
}

static int s3_stat(clt_io_component *c, const char *path, clt_io_info *out) {
    clt_s3_place p;
    clt_s3_info info;
    *out = (clt_io_info){.kind = CLT_IO_ABSENT};
    int e = clt_s3_place_of(c, path, &p);
    if (!e && *p.key) {
        e = clt_s3_head(p.store, p.bucket, p.key, &info);
        if (!e) *out = (clt_io_info){.kind = CLT_IO_FILE, .bytes = info.bytes};
    }
    if (e == ENOENT || (!e && !*p.key)) e = stat_folder(&p, out);
    clt_s3_place_free(&p);
    return e;
}

static int s3_unlink(clt_io_component *c, const char *path) {
    clt_s3_place p;
    clt_s3_info info;
    int e = clt_s3_place_of(c, path, &p);
    if (!e && !*p.key) e = clt_s3_fail(EISDIR, "a bucket is no file");
    if (!e) e = clt_s3_head(p.store, p.bucket, p.key, &info); /* deleting what is absent succeeds */
    if (!e) e = clt_s3_delete(p.store, p.bucket, p.key);
    clt_s3_place_free(&p);
    return e;
}

/* --- versions --- */

static int s3_replace(clt_io_component *c, const char *path, const void *data, size_t bytes,
                      const char *expected, char version[CLT_IO_VERSION_BYTES]) {
    clt_s3_place p;
    char etag[256] = "";
    int e = clt_s3_place_of(c, path, &p);
    if (!e && !*p.key) e = clt_s3_fail(EISDIR, "a bucket is no file");
    if (!e) {
        if (expected) snprintf(etag, sizeof etag, "%s", expected);
        clt_s3_condition condition = !expected ? CLT_S3_ANY : *expected ? CLT_S3_IF_MATCH : CLT_S3_IF_ABSENT;
        e = clt_s3_put(p.store, p.bucket, p.key, data, bytes, condition, etag);
    }
    if (!e) memcpy(version, etag, sizeof etag);
    clt_s3_place_free(&p);
    return e;
}

static int s3_version(clt_io_component *c, const char *path, char version[CLT_IO_VERSION_BYTES]) {
    clt_s3_place p;
    clt_s3_info info;
    int e = clt_s3_place_of(c, path, &p);
    if (!e) e = *p.key ? clt_s3_head(p.store, p.bucket, p.key, &info) : ENOENT;
    if (!e) memcpy(version, info.etag, sizeof info.etag);
    clt_s3_place_free(&p);
    return e;
}

/* What an upload holds; UINT64_MAX: the store does not tell, which is no failure. */
static uint64_t upload_bytes(const clt_s3_place *p, const clt_s3_object *o) {
    uint64_t bytes;
    if (clt_s3_upload_bytes(p->store, p->bucket, o->key, o->upload_id, &bytes)) bytes = UINT64_MAX;
    clt_s3_forget();
    return bytes;
}

static int s3_clean(clt_io_component *c, const char *path, double age, bool dry_run,
                    clt_io_unfinished_fn each, void *ctx, int *n) {
    clt_s3_place p;
    clt_s3_listing l = {0};
    int e = clt_s3_place_of(c, path, &p);
    char *prefix = below(&p);
    *n = 0;
    if (!e) e = clt_s3_uploads(p.store, p.bucket, prefix, &l);
    for (size_t i = 0; i < l.n && !e; i++) {
        const clt_s3_object *o = &l.objects[i];
        clt_io_unfinished u = {
            .name = o->key + strlen(prefix), .began = o->modified, .age = clt_s3_time(p.store) - o->modified};
        if (o->modified <= 0 || u.age <= age) continue;
        if (each) u.bytes = upload_bytes(&p, o);
        e = dry_run ? 0 : clt_s3_upload_abort(p.store, p.bucket, o->key, o->upload_id);
        if (!e && each) each(ctx, &u);
        if (!e) ++*n;
    }
    clt_s3_listing_free(&l);
    clt_free(prefix);
    clt_s3_place_free(&p);
    return e;
}

static const char *s3_explain(clt_io_component *c) {
    (void)c;
    return clt_s3_reason();
}

/* --- the component --- */

clt_io_component *clt_io_s3_create(void) {
    static const clt_io_ops ops = {
        .name = "object store",
        .open = clt_io_s3_open,
        .pread = clt_io_s3_pread,
        .pwrite = clt_io_s3_pwrite,
        .size = clt_io_s3_size,
        .datasync = clt_io_s3_sync,
        .sync = clt_io_s3_sync,
        .close = clt_io_s3_close,
        .abandon = clt_io_s3_abandon,
        .unlink = s3_unlink,
        .list = s3_list,
        .stat = s3_stat,
        .lock = clt_io_s3_lock,
        .sign = clt_io_s3_sign,
        .unlock = clt_io_s3_unlock,
        .is_held = clt_io_s3_is_held,
        .replace = s3_replace,
        .version = s3_version,
        .clean = s3_clean,
        .explain = s3_explain,
    };
    clt_io_s3 *c = clt_calloc(1, sizeof *c);
    c->base = (clt_io_component){&ops,
                                 CLT_IO_CAN_READ_RANGES | CLT_IO_CAN_CREATE_NEW | CLT_IO_CAN_LOCK |
                                     CLT_IO_APPEARS_WHOLE | CLT_IO_HAS_VERSIONS,
                                 .lock_retry = 5};
    pthread_mutex_init(&c->lock, NULL);
    return &c->base;
}

void clt_io_s3_destroy(clt_io_component *component) {
    clt_io_s3 *c = (clt_io_s3 *)component;
    if (!c) return;
    if (c->store) clt_s3_cancel(c->store);
    clt_s3_pool_end();
    clt_s3_destroy(c->store);
    pthread_mutex_destroy(&c->lock);
    clt_free(c);
}
