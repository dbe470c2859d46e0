#include "runtime/object/clt_s3.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "runtime/object/clt_s3_internal.h"

/* --- a store --- */

clt_s3 *clt_s3_create(clt_s3_config *config, double seconds) {
    clt_s3 *s = clt_calloc(1, sizeof *s);
    s->config = *config;
    memset(config, 0, sizeof *config);
    s->seconds = seconds;
    size_t scheme = strncasecmp(s->config.endpoint, "http://", 7) ? 8 : 7;
    snprintf(s->scheme, sizeof s->scheme, "%s", scheme == 7 ? "http://" : "https://");
    s->host = clt_strdup(s->config.endpoint + scheme);
    /* libcurl sends no port that is the scheme's in the Host header, which is signed. */
    const char *port = scheme == 7 ? ":80" : ":443";
    size_t n = strlen(s->host), m = strlen(port);
    if (n > m && !strcmp(s->host + n - m, port)) s->host[n - m] = 0;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->refreshing, NULL);
    s->refreshed = -1e9;
    s->warned = -1e9;
    return s;
}

void clt_s3_destroy(clt_s3 *s) {
    if (!s) return;
    for (clt_s3_bucket *b = s->buckets, *next; b; b = next) {
        next = b->next;
        clt_free(b);
    }
    clt_s3_config_free(&s->config);
    clt_free(s->host);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->refreshing);
    clt_free(s);
}

void clt_s3_cancel(clt_s3 *s) {
    s->cancelled = true;
    clt_http_cancel_all();
}

double clt_s3_time(const clt_s3 *s) {
    return clt_wall() + s->ahead;
}

/* --- reading --- */

static void take_info(clt_s3_info *out, const clt_http_response *r) {
    *out = (clt_s3_info){
        .bytes = r->content_length, .modified = clt_http_date(r->modified), .now = clt_http_date(r->date)};
    memcpy(out->etag, r->etag, sizeof out->etag);
    memcpy(out->writer, r->writer, sizeof out->writer);
}

/* Checks a complete response to the range and counts its bytes. `total`: size of the object, UINT64_MAX:
 * unknown. */
static int take_range(clt_s3_call *c, uint64_t *total) {
    const clt_http_response *r = &c->response;
    unsigned long long from, to, all;
    *total = UINT64_MAX;
    if (r->status == 416) {
        if (c->offset == 0) *total = 0; /* nothing can be a range of an empty object */
        if (sscanf(r->range, "bytes */%llu", &all) == 1) *total = all;
        return 0;
    }
    if (r->status == 200 && c->offset + c->got == 0) { /* it may answer a range of everything so */
        *total = r->bytes;
    } else {
        int n = sscanf(r->range, "bytes %llu-%llu/%llu", &from, &to, &all);
        if (r->status != 206 || n < 2 || from != c->offset + c->got || to < from || to - from + 1 != r->bytes)
            return clt_s3_fail(EIO,
                               "cannot get s3://%s/%s: GET: status %d, range '%s': not what was asked for",
                               c->bucket, c->key, r->status, r->range);
        if (n == 3) *total = all;
    }
    c->got += r->bytes;
    if (!*c->etag) memcpy(c->etag, r->etag, sizeof c->etag);
    return 0;
}

/* One byte of the object: the response to HEAD has no body that could say why it was refused. */
static int ask_why(clt_s3 *s, const char *bucket, const char *key, clt_s3_info *out) {
    char byte;
    uint64_t total;
    clt_s3_call c = {.verb = "stat",
                     .right = "s3:GetObject",
                     .method = "GET",
                     .bucket = bucket,
                     .key = key,
                     .ranged = true,
                     .into = &byte,
                     .want = 1};
    int e = clt_s3_call_run(s, &c);
    if (!e) e = take_range(&c, &total);
    if (!e) {
        take_info(out, &c.response);
        out->bytes = total;
    }
    clt_s3_call_free(&c);
    return e;
}

int clt_s3_head(clt_s3 *s, const char *bucket, const char *key, clt_s3_info *out) {
    clt_s3_call c = {.verb = "stat", .right = "s3:GetObject", .method = "HEAD", .bucket = bucket, .key = key};
    int e = clt_s3_call_run(s, &c);
    if (!e) take_info(out, &c.response);
    const int status = c.response.status;
    clt_s3_call_free(&c);
    if (e && (status == 400 || status == 403)) e = ask_why(s, bucket, key, out);
    if (!e && out->bytes == UINT64_MAX)
        e = clt_s3_fail(EIO, "cannot stat s3://%s/%s: the store gives no length", bucket, key);
    return e;
}

int clt_s3_get(clt_s3 *s, const char *bucket, const char *key, const char *etag, void *dst, size_t bytes,
               uint64_t offset, size_t *got, clt_s3_info *out) {
    clt_s3_call c = {.verb = "get",
                     .right = "s3:GetObject",
                     .method = "GET",
                     .bucket = bucket,
                     .key = key,
                     .ranged = true,
                     .into = dst,
                     .want = bytes,
                     .offset = offset};
    uint64_t total = UINT64_MAX;
    int e = 0;
    *got = 0;
    if (etag) snprintf(c.etag, sizeof c.etag, "%s", etag);
    while (!e && c.got < bytes) {
        size_t before = c.got;
        c.attempts = 0;
        e = clt_s3_call_run(s, &c);
        if (!e && c.got < bytes) e = take_range(&c, &total);
        if (!e && (c.response.status == 416 || c.response.status == 200 || c.got == before)) break;
        if (total != UINT64_MAX && offset + c.got >= total) break;
    }
    *got = c.got;
    if (!e && out) {
        take_info(out, &c.response);
        memcpy(out->etag, c.etag, sizeof out->etag);
        out->bytes = total;
        if (total == UINT64_MAX) e = clt_s3_head(s, bucket, key, out);
        if (!e && *c.etag && strcmp(c.etag, out->etag))
            e = clt_s3_fail(ESTALE, "s3://%s/%s changed while it was read", bucket, key);
    }
    clt_s3_call_free(&c);
    return e;
}

/* --- writing --- */

void clt_s3_writer(char out[33]) {
    uint64_t r[2];
    if (getrandom(r, sizeof r, 0) != sizeof r) {
        static atomic_ullong count;
        r[0] = (uint64_t)(clt_wall() * 1e9);
        r[1] = (uint64_t)(uintptr_t)&r ^ atomic_fetch_add(&count, 1);
    }
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
}

void clt_s3_call_condition(clt_s3_call *c, clt_s3_condition condition, const char *etag) {
    if (condition == CLT_S3_IF_ABSENT) clt_s3_call_header(c, "if-none-match", "*");
    if (condition == CLT_S3_IF_MATCH) clt_s3_call_header(c, "if-match", etag);
}

bool clt_s3_is_own(clt_s3 *s, const clt_s3_call *c, const char *writer, char etag[256]) {
    clt_s3_info info;
    if (!c->maybe_done || clt_s3_head(s, c->bucket, c->key, &info) || strcmp(info.writer, writer))
        return false;
    memcpy(etag, info.etag, sizeof info.etag);
    clt_s3_forget();
    return true;
}

/* The errno value of a put whose condition does not hold. */
static int unmet(const clt_s3_call *c, clt_s3_condition condition) {
    if (condition == CLT_S3_IF_ABSENT)
        return clt_s3_fail(EEXIST, "s3://%s/%s exists already", c->bucket, c->key);
    return clt_s3_fail(ESTALE, "s3://%s/%s is another version or gone", c->bucket, c->key);
}

static int put(clt_s3 *s, clt_s3_call *c, clt_s3_condition condition, const char *writer, char etag[256]) {
    char old[256];
    snprintf(old, sizeof old, "%s", etag);
    clt_s3_call_condition(c, condition, old);
    if (condition != CLT_S3_ANY) clt_s3_call_header(c, "x-amz-meta-cltrain-writer", writer);
    int e = clt_s3_call_run(s, c);
    if (!e) memcpy(etag, c->response.etag, 256);
    bool refused = condition != CLT_S3_ANY && (e == ESTALE || (e == ENOENT && condition == CLT_S3_IF_MATCH));
    if (refused) e = clt_s3_is_own(s, c, writer, etag) ? 0 : unmet(c, condition);
    if (!e && !*etag) {
        clt_s3_info info;
        e = clt_s3_head(s, c->bucket, c->key, &info);
        if (!e) memcpy(etag, info.etag, sizeof info.etag);
    }
    return e;
}

static clt_s3_call put_call(const char *bucket, const char *key, const void *data, size_t bytes) {
    return (clt_s3_call){.verb = "put",
                         .right = "s3:PutObject",
                         .method = "PUT",
                         .bucket = bucket,
                         .key = key,
                         .body = data,
                         .body_bytes = bytes};
}

static int ignores(const char *bucket, clt_s3_condition condition) {
    return clt_s3_fail(ENOTSUP, "the store of s3://%s ignores %s: it cannot keep two writers apart", bucket,
                       condition == CLT_S3_IF_ABSENT ? "If-None-Match" : "If-Match");
}

/* After the first conditional put that succeeded: sends the same on a condition that does not hold. */
static int probe(clt_s3 *s, const clt_s3_call *done, clt_s3_condition condition, atomic_int *heeds,
                 char etag[256]) {
    char wrong[256] = "\"00000000000000000000000000000000\"", writer[33];
    clt_s3_writer(writer); /* another one, so that a refusal is not taken for a success */
    clt_s3_call c = put_call(done->bucket, done->key, done->body, done->body_bytes);
    c.ask_first = true;
    int e = put(s, &c, condition, writer, wrong);
    clt_s3_call_free(&c);
    if (e == EEXIST || e == ESTALE) *heeds = CLT_S3_HEEDED;
    clt_s3_forget();
    if (e) return 0;
    *heeds = CLT_S3_IGNORED;
    memcpy(etag, wrong, sizeof wrong);
    return ignores(done->bucket, condition);
}

int clt_s3_put(clt_s3 *s, const char *bucket, const char *key, const void *data, size_t bytes,
               clt_s3_condition condition, char etag[256]) {
    char writer[33] = "", unused[256];
    atomic_int *heeds = NULL;
    if (condition != CLT_S3_ANY) {
        heeds = &clt_s3_bucket_of(s, bucket)->heeds[condition == CLT_S3_IF_MATCH];
        if (*heeds == CLT_S3_IGNORED) return ignores(bucket, condition);
        clt_s3_writer(writer);
    }
    clt_s3_call c = put_call(bucket, key, data, bytes);
    int e = put(s, &c, condition, writer, etag ? etag : strcpy(unused, ""));
    if (!e && heeds && *heeds == CLT_S3_UNKNOWN) e = probe(s, &c, condition, heeds, etag ? etag : unused);
    clt_s3_call_free(&c);
    return e;
}

int clt_s3_delete(clt_s3 *s, const char *bucket, const char *key) {
    clt_s3_call c = {
        .verb = "delete", .right = "s3:DeleteObject", .method = "DELETE", .bucket = bucket, .key = key};
    int e = clt_s3_call_run(s, &c);
    clt_s3_call_free(&c);
    if (e == ENOENT) clt_s3_forget();
    return e == ENOENT ? 0 : e;
}

/* --- listing --- */

/* Adds one page. */
static int list_page(clt_s3 *s, const char *bucket, const char *prefix, const char *delimiter,
                     const char *most, clt_s3_listing *out) {
    char *token = out->next;
    size_t n = out->n, m = out->prefixes.n;
    out->next = NULL;
    clt_s3_call c = {.verb = "list", .right = "s3:ListBucket", .method = "GET", .bucket = bucket, .key = ""};
    clt_s3_call_query(&c, "list-type", "2");
    clt_s3_call_query(&c, "encoding-type", "url");
    clt_s3_call_query(&c, "prefix", prefix);
    clt_s3_call_query(&c, "delimiter", delimiter);
    clt_s3_call_query(&c, "max-keys", most);
    clt_s3_call_query(&c, "continuation-token", token);
    int e = clt_s3_call_run(s, &c);
    const char *text = c.response.text ? c.response.text : "";
    bool valid = e || !clt_s3_xml_listing(text, c.response.text_bytes, out);
    for (; !e && valid && n < out->n; n++) valid = !strncmp(out->objects[n].key, prefix, strlen(prefix));
    for (; !e && valid && m < out->prefixes.n; m++)
        valid = !strncmp(out->prefixes.v[m], prefix, strlen(prefix));
    if (!e && out->truncated)
        valid = valid && out->next && *out->next && (!token || strcmp(token, out->next));
    if (!valid) e = clt_s3_fail(EIO, "cannot list s3://%s/%s: GET: the list is malformed", bucket, prefix);
    clt_free(token);
    clt_s3_call_free(&c);
    return e;
}

int clt_s3_list(clt_s3 *s, const char *bucket, const char *prefix, const char *delimiter, size_t most,
                clt_s3_listing *out) {
    char number[24];
    if (most) snprintf(number, sizeof number, "%zu", CLT_MIN(most, 1000));
    int e;
    do e = list_page(s, bucket, prefix, delimiter, most ? number : NULL, out);
    while (!e && out->truncated && (!most || out->n + out->prefixes.n < most));
    return e;
}
