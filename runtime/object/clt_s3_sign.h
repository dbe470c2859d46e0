/* clt_s3_sign: AWS signature version 4 of one request, as published in "Authenticating Requests (AWS
 * Signature Version 4)". It is computed here and not by libcurl, whose signer differs by version. Pure
 * functions: no clock, no state, no allocation that stays; compared with AWS's published vectors and with
 * botocore. */
#ifndef CLT_S3_SIGN_H
#define CLT_S3_SIGN_H

#include "runtime/base/clt_base.h"

enum { CLT_SHA256_HEX = 65 };

typedef struct {
    const char *name, *value; /* a query parameter (unencoded), or a header (name in lower case) */
} clt_s3_pair;

typedef struct {
    const char *method;       /* "GET" */
    const char *host;         /* as in the Host header, with the port if it is not the scheme's */
    const char *path;         /* "/bucket/key", unencoded */
    const clt_s3_pair *query; /* in any order; sorted and encoded here */
    size_t n_query;
    const clt_s3_pair *headers; /* further headers that are signed (x-amz-..., range), in any order */
    size_t n_headers;
    const char *payload_sha256;                          /* 64 hex digits, or "UNSIGNED-PAYLOAD" */
    int64_t time;                                        /* seconds since 1970 */
    const char *region, *service;                        /* "s3" */
    const char *access_key, *secret_key, *session_token; /* session_token NULL: none */
} clt_s3_request_to_sign;

/* Adds headers to send, one a text "name: value": authorization, x-amz-date, x-amz-content-sha256, and
 * x-amz-security-token with a session. */
void clt_s3_sign(const clt_s3_request_to_sign *r, clt_strv *headers);
/* The same with parts that a test can compare; to be freed with clt_free. */
char *clt_s3_canonical_request(const clt_s3_request_to_sign *r);
char *clt_s3_string_to_sign(const clt_s3_request_to_sign *r);

/* A GET that anybody may send for `seconds` (1 to 604,800): the query part ("X-Amz-Algorithm=..."), to be
 * freed with clt_free. The payload is UNSIGNED-PAYLOAD. */
char *clt_s3_presign(const clt_s3_request_to_sign *r, int64_t seconds);

/* Adds `text` in percent-encoding as version 4 defines it: A-Z a-z 0-9 - _ . ~ stay, '/' stays with
 * `slashes`, everything else is %XX of its bytes. */
void clt_s3_encode(clt_str *out, const char *text, bool slashes);

/* SHA-256 of bytes as 64 lower-case hex digits. */
void clt_sha256_hex(const void *data, size_t bytes, char out[CLT_SHA256_HEX]);

#endif
