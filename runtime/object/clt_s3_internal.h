/* clt_s3_internal: one call of clt_s3, for clt_s3*.c only. */
#ifndef CLT_S3_INTERNAL_H
#define CLT_S3_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/object/clt_http.h"
#include "runtime/object/clt_s3.h"
#include "runtime/object/clt_s3_sign.h"

typedef enum { CLT_S3_UNKNOWN, CLT_S3_HEEDED, CLT_S3_IGNORED } clt_s3_heed;

/* What was learned about a bucket. */
typedef struct clt_s3_bucket {
    char name[256], region[64]; /* region "": the configuration's */
    atomic_int heeds[2];        /* clt_s3_heed of If-None-Match, If-Match */
    struct clt_s3_bucket *next;
} clt_s3_bucket;

struct clt_s3 {
    clt_s3_config config; /* credentials: under the lock */
    char scheme[9], *host;
    double seconds;
    pthread_mutex_t lock;
    pthread_mutex_t refreshing; /* held while credentials are read again */
    double refreshed;           /* when, clt_now */
    atomic_uint generation;     /* of the credentials */
    clt_s3_bucket *buckets;     /* list under the lock; entries stay, regions under the lock */
    atomic_bool cancelled, responded;
    _Atomic double skew;   /* what is added to this machine's clock to sign */
    _Atomic double ahead;  /* the server's clock minus this machine's */
    _Atomic double warned; /* clt_now */
};

/* A request and what came of it. */
typedef struct {
    const char *verb, *right; /* for texts: "get", "s3:GetObject" */
    const char *method, *bucket, *key;
    clt_s3_pair query[8], headers[8];
    size_t n_query, n_headers;
    const void *body;
    size_t body_bytes;
    bool patient, ask_first, holds_error; /* holds_error: a 200 may be an <Error> */

    /* A ranged GET, resumed where it broke off: bytes [offset, offset + want) to `into`. */
    bool ranged;
    void *into;
    size_t want, got;
    uint64_t offset;
    char etag[256]; /* If-Match, unless "": given, or of the first response */

    /* --- results --- */
    clt_http_response response; /* of the last attempt; freed by clt_s3_call_free */
    clt_s3_error error;
    int attempts;
    bool maybe_done; /* the response of an attempt was lost, which may have had its effect */

    /* --- of clt_s3_call.c --- */
    int damaged;
    bool refreshed, moved, skewed;
    unsigned generation;
    double signed_at;
    char sha256[CLT_SHA256_HEX], secret[2][17]; /* secret: what a text must not have in it */
} clt_s3_call;

/* Sends and repeats. 0: status 2xx, or 416 of a ranged GET. The failure's text is set. */
int clt_s3_call_run(clt_s3 *s, clt_s3_call *c);
void clt_s3_call_free(clt_s3_call *c);
void clt_s3_call_query(clt_s3_call *c, const char *name, const char *value);
void clt_s3_call_header(clt_s3_call *c, const char *name, const char *value);
/* The header of a condition, for PUT and complete; marks the object with `writer`. */
void clt_s3_call_condition(clt_s3_call *c, clt_s3_condition condition, const char *etag);
void clt_s3_writer(char out[33]); /* a new one */
clt_s3_bucket *clt_s3_bucket_of(clt_s3 *s, const char *name);
/* Whether the object is that of an attempt whose response was lost; then etag receives its name. */
bool clt_s3_is_own(clt_s3 *s, const clt_s3_call *c, const char *writer, char etag[256]);

uint64_t clt_s3_retries(void);
double clt_s3_waited(void);

#endif
