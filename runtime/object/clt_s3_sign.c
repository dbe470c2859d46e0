#include "runtime/object/clt_s3_sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SHA256_BYTES = 32 };

static const char algorithm[] = "AWS4-HMAC-SHA256";

static void hex_of(const unsigned char *bytes, char out[CLT_SHA256_HEX]) {
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

void clt_sha256_hex(const void *data, size_t bytes, char out[CLT_SHA256_HEX]) {
    unsigned char digest[SHA256_BYTES];
    EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL);
    hex_of(digest, out);
}

void clt_s3_encode(clt_str *out, const char *text, bool slashes) {
    for (const char *s = text; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        const bool stays = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                           strchr("-_.~", c) || (slashes && c == '/');
        if (stays)
            clt_str_addn(out, s, 1);
        else
            clt_str_addf(out, "%%%02X", c);
    }
}

/* --- the parts --- */

typedef struct {
    char stamp[24], day[16]; /* 20130524T000000Z, 20130524 */
} when;

static when when_of(int64_t seconds) {
    when w;
    struct tm tm;
    const time_t t = (time_t)seconds;
    gmtime_r(&t, &tm);
    strftime(w.stamp, sizeof w.stamp, "%Y%m%dT%H%M%SZ", &tm);
    strftime(w.day, sizeof w.day, "%Y%m%d", &tm);
    return w;
}

static char *scope_of(const clt_s3_request_to_sign *r) {
    return clt_format("%s/%s/%s/aws4_request", when_of(r->time).day, r->region, r->service);
}

/* Header values as they are signed: without spaces at the ends, several spaces as one. */
static void add_trimmed(clt_str *out, const char *value) {
    bool space = false, any = false;
    for (const char *s = value; *s; s++) {
        if (*s == ' ' || *s == '\t') {
            space = any;
            continue;
        }
        if (space) clt_str_add(out, " ");
        clt_str_addn(out, s, 1);
        space = false, any = true;
    }
}

static void add_header(clt_strv *list, const char *name, const char *value) {
    clt_str line = {0};
    clt_str_addf(&line, "%s:", name);
    add_trimmed(&line, value);
    clt_strv_add_owned(list, line.s);
}

/* By name: '-' in a longer name must not come before the ':' of a shorter one. */
static int by_name(const void *a, const void *b) {
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const size_t nx = strcspn(x, ":"), ny = strcspn(y, ":");
    const int order = memcmp(x, y, CLT_MIN(nx, ny));
    return order ? order : (nx > ny) - (nx < ny);
}

/* "name:value" of the headers that are signed, sorted. A presigned URL signs the host only. */
static void signed_headers(const clt_s3_request_to_sign *r, bool presigned, clt_strv *list) {
    add_header(list, "host", r->host);
    if (!presigned) {
        const when w = when_of(r->time);
        for (size_t i = 0; i < r->n_headers; i++) add_header(list, r->headers[i].name, r->headers[i].value);
        add_header(list, "x-amz-date", w.stamp);
        add_header(list, "x-amz-content-sha256", r->payload_sha256);
        if (r->session_token) add_header(list, "x-amz-security-token", r->session_token);
    }
    qsort(list->v, list->n, sizeof *list->v, by_name);
}

static char *names_of(const clt_strv *headers) {
    clt_str names = {0};
    for (size_t i = 0; i < headers->n; i++)
        clt_str_addf(&names, "%s%.*s", i ? ";" : "", (int)strcspn(headers->v[i], ":"), headers->v[i]);
    return names.s;
}

typedef struct {
    char *name, *value; /* encoded */
} parameter;

static int by_name_and_value(const void *a, const void *b) {
    const parameter *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    return names ? names : strcmp(x->value, y->value);
}

static char *encoded(const char *text) {
    clt_str s = {0};
    clt_str_add(&s, "");
    clt_s3_encode(&s, text, false);
    return s.s;
}

/* The canonical query: encoded, sorted by encoded name, then by encoded value. */
static char *query_of(const clt_s3_pair *query, size_t n) {
    parameter *p = clt_calloc(CLT_MAX(n, 1), sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (parameter){encoded(query[i].name), encoded(query[i].value)};
    qsort(p, n, sizeof *p, by_name_and_value);
    clt_str out = {0};
    clt_str_add(&out, "");
    for (size_t i = 0; i < n; i++) {
        clt_str_addf(&out, "%s%s=%s", i ? "&" : "", p[i].name, p[i].value);
        clt_free(p[i].name);
        clt_free(p[i].value);
    }
    clt_free(p);
    return out.s;
}

static char *canonical(const clt_s3_request_to_sign *r, const char *query, bool presigned) {
    clt_strv headers = {0};
    clt_str out = {0};
    signed_headers(r, presigned, &headers);
    char *names = names_of(&headers);
    clt_str_addf(&out, "%s\n", r->method);
    clt_s3_encode(&out, r->path, true);
    clt_str_addf(&out, "\n%s\n", query);
    for (size_t i = 0; i < headers.n; i++) clt_str_addf(&out, "%s\n", headers.v[i]);
    clt_str_addf(&out, "\n%s\n%s", names, presigned ? "UNSIGNED-PAYLOAD" : r->payload_sha256);
    clt_free(names);
    clt_strv_free(&headers);
    return out.s;
}

static char *to_sign(const clt_s3_request_to_sign *r, const char *canonical_request) {
    char digest[CLT_SHA256_HEX];
    const when w = when_of(r->time);
    clt_sha256_hex(canonical_request, strlen(canonical_request), digest);
    char *scope = scope_of(r), *out = clt_format("%s\n%s\n%s\n%s", algorithm, w.stamp, scope, digest);
    clt_free(scope);
    return out;
}

/* --- the signature --- */

static void hmac(unsigned char key[SHA256_BYTES], const char *text) {
    unsigned char out[SHA256_BYTES];
    HMAC(EVP_sha256(), key, SHA256_BYTES, (const unsigned char *)text, strlen(text), out, NULL);
    memcpy(key, out, SHA256_BYTES);
}

static void signature_of(const clt_s3_request_to_sign *r, const char *string, char out[CLT_SHA256_HEX]) {
    unsigned char key[SHA256_BYTES];
    const when w = when_of(r->time);
    char *first = clt_format("AWS4%s", r->secret_key);
    HMAC(EVP_sha256(), first, (int)strlen(first), (const unsigned char *)w.day, strlen(w.day), key, NULL);
    hmac(key, r->region);
    hmac(key, r->service);
    hmac(key, "aws4_request");
    hmac(key, string);
    hex_of(key, out);
    explicit_bzero(key, sizeof key);
    explicit_bzero(first, strlen(first));
    clt_free(first);
}

char *clt_s3_canonical_request(const clt_s3_request_to_sign *r) {
    char *query = query_of(r->query, r->n_query), *out = canonical(r, query, false);
    clt_free(query);
    return out;
}

char *clt_s3_string_to_sign(const clt_s3_request_to_sign *r) {
    char *request = clt_s3_canonical_request(r), *out = to_sign(r, request);
    clt_free(request);
    return out;
}

void clt_s3_sign(const clt_s3_request_to_sign *r, clt_strv *headers) {
    char signature[CLT_SHA256_HEX];
    const when w = when_of(r->time);
    clt_strv list = {0};
    signed_headers(r, false, &list);
    char *names = names_of(&list), *scope = scope_of(r), *string = clt_s3_string_to_sign(r);
    signature_of(r, string, signature);
    clt_strv_add_owned(headers,
                       clt_format("authorization: %s Credential=%s/%s, SignedHeaders=%s, Signature=%s",
                                  algorithm, r->access_key, scope, names, signature));
    clt_strv_add_owned(headers, clt_format("x-amz-date: %s", w.stamp));
    clt_strv_add_owned(headers, clt_format("x-amz-content-sha256: %s", r->payload_sha256));
    if (r->session_token)
        clt_strv_add_owned(headers, clt_format("x-amz-security-token: %s", r->session_token));
    clt_free(names);
    clt_free(scope);
    clt_free(string);
    clt_strv_free(&list);
}

char *clt_s3_presign(const clt_s3_request_to_sign *r, int64_t seconds) {
    enum { OWN = 6 };
    const when w = when_of(r->time);
    char *scope = scope_of(r), *credential = clt_format("%s/%s", r->access_key, scope), lasts[24];
    char signature[CLT_SHA256_HEX];
    snprintf(lasts, sizeof lasts, "%lld", (long long)seconds);
    clt_s3_pair *all = clt_calloc(r->n_query + OWN, sizeof *all);
    size_t n = 0;
    for (size_t i = 0; i < r->n_query; i++) all[n++] = r->query[i];
    all[n++] = (clt_s3_pair){"X-Amz-Algorithm", algorithm};
    all[n++] = (clt_s3_pair){"X-Amz-Credential", credential};
    all[n++] = (clt_s3_pair){"X-Amz-Date", w.stamp};
    all[n++] = (clt_s3_pair){"X-Amz-Expires", lasts};
    all[n++] = (clt_s3_pair){"X-Amz-SignedHeaders", "host"};
    if (r->session_token) all[n++] = (clt_s3_pair){"X-Amz-Security-Token", r->session_token};
    char *query = query_of(all, n), *request = canonical(r, query, true), *string = to_sign(r, request);
    signature_of(r, string, signature);
    char *out = clt_format("%s&X-Amz-Signature=%s", query, signature);
    clt_free(all);
    clt_free(scope);
    clt_free(credential);
    clt_free(query);
    clt_free(request);
    clt_free(string);
    return out;
}
