/* clt_s3: the operations of an object store on one bucket, signed and repeated. A failure that can pass
 * (ECONNRESET, ECONNREFUSED, EHOSTUNREACH, ETIMEDOUT of clt_http; status 408, 429, 500, 502, 503, 504; an
 * <Error> of that kind with another status; up to three bodies that arrived damaged) is repeated after 0.2 s
 * x 2^k with full jitter, at most 20 s, or as long as Retry-After says (at most 60 s), until the deadline of
 * the call or that of its thread (clt_io_set_deadline). While the store has never responded, a name, route or
 * port that cannot be reached ends a call after 60 s: it is probably a mistake. A clock that differs by
 * minutes (RequestTimeTooSkewed) is corrected by the server's; expired credentials are read again once a
 * call, and before they expire; the region that the store names is taken once a call and kept for the bucket.
 *
 * Functions return 0 or an errno value and print nothing but one warning a minute while a store does not
 * respond. clt_s3_failure tells the calling thread the last failure: "cannot get s3://bucket/key: GET: 403
 * AccessDenied (request id ...): the credentials lack s3:GetObject". ENOENT: no such key; ENODEV: no such
 * bucket; EACCES: refused (the text names the missing right); EEXIST, ESTALE: the condition of a conditional
 * put does not hold (if absent, if match); ESTALE also: the object changed while it was read; ENOSPC: store
 * full; ETIMEDOUT: the deadline; EKEYEXPIRED: credentials expired; ECANCELED: clt_io_heed_stop,
 * clt_s3_cancel; ENOTSUP: the store cannot do it; EINVAL: no valid name; EIO: anything else. They may be
 * called from several threads at once. */
#ifndef CLT_S3_H
#define CLT_S3_H

#include "runtime/object/clt_s3_config.h"
#include "runtime/object/clt_s3_xml.h"

typedef struct clt_s3 clt_s3;

typedef struct {
    uint64_t bytes;
    char etag[256];
    double modified; /* seconds since 1970; 0: unknown */
    double now;      /* the server's time when it responded; 0: unknown */
    char writer[64]; /* of a conditional put or an upload: who wrote it, a random number; "": unknown */
} clt_s3_info;

/* One store; what `config` holds is taken over. `seconds` is the deadline of each call (CLTRAIN_S3_TIMEOUT,
 * default 600), of which repetitions are a part. */
clt_s3 *clt_s3_create(clt_s3_config *config, double seconds);
void clt_s3_destroy(clt_s3 *s); /* NULL is allowed; no call may be in progress */
void clt_s3_cancel(clt_s3 *s);  /* calls in progress and later ones end with ECANCELED */
/* Another deadline for the calls of this thread, 0: the store's. Returns the previous value. */
double clt_s3_limit(double seconds);
/* Seconds since 1970 by the server's clock, as its last response told; before one, by this machine's. */
double clt_s3_time(const clt_s3 *s);

/* Text of this thread's last failure, "" if there was none; valid until its next call. clt_s3_reason is what
 * follows "cannot VERB s3://bucket/key: ". clt_s3_fail sets it, for what another thread did: printf format.
 */
const char *clt_s3_failure(void);
const char *clt_s3_reason(void);
void clt_s3_forget(void);                                                           /* the text is "" again */
int clt_s3_fail(int e, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* returns e */

int clt_s3_head(clt_s3 *s, const char *bucket, const char *key, clt_s3_info *out);
/* Bytes [offset, offset + bytes) into dst; *got may be fewer at the end of the object (0 behind it). etag:
 * not NULL and not "": only of this version (ESTALE otherwise). out may be NULL. A body that breaks off is
 * resumed at the byte where it did. */
int clt_s3_get(clt_s3 *s, const char *bucket, const char *key, const char *etag, void *dst, size_t bytes,
               uint64_t offset, size_t *got, clt_s3_info *out);

typedef enum { CLT_S3_ANY, CLT_S3_IF_ABSENT, CLT_S3_IF_MATCH } clt_s3_condition;
/* One PUT with the SHA-256 of the bytes. etag[256]: of CLT_S3_IF_MATCH, and receives the new one. A
 * conditional put marks the object with a random number (x-amz-meta-cltrain-writer), so that a repeated one
 * whose first response was lost recognizes its own object instead of saying EEXIST. After the first success
 * of each kind in a bucket the same put is sent once more, on a condition that does not hold: a store that
 * accepts it ignores conditions, which is ENOTSUP from then on (the object stays as it was written). */
int clt_s3_put(clt_s3 *s, const char *bucket, const char *key, const void *data, size_t bytes,
               clt_s3_condition condition, char etag[256]);
int clt_s3_delete(clt_s3 *s, const char *bucket, const char *key); /* absent is 0 */
/* Objects whose key begins with `prefix`, all pages; or about `most` of them, 0: all. With `delimiter` ("/")
 * only those without another delimiter behind the prefix, and the common prefixes. Keys that do not begin
 * with `prefix` are EIO. clt_s3_listing_free in any case. */
int clt_s3_list(clt_s3 *s, const char *bucket, const char *prefix, const char *delimiter, size_t most,
                clt_s3_listing *out);

/* --- multipart uploads --- */
typedef struct {
    char *id; /* NULL: none is in progress */
    char writer[33];
} clt_s3_upload;

/* An upload is freed by clt_s3_upload_free, which asks nothing. */
int clt_s3_upload_begin(clt_s3 *s, const char *bucket, const char *key, clt_s3_upload *out);
void clt_s3_upload_free(clt_s3_upload *u);
/* Part `number` (from 1), of at least 5 MiB but for the last; etag receives its name for complete. */
int clt_s3_upload_part(clt_s3 *s, const char *bucket, const char *key, const clt_s3_upload *u, int number,
                       const void *data, size_t bytes, char etag[256]);
/* One object of the parts 1 to n. Repeated like a conditional put. That a store heeds the condition here is
 * not probed: with CLT_S3_IF_ABSENT a HEAD comes first, so at worst two uploads that end at the same moment
 * both succeed. */
int clt_s3_upload_complete(clt_s3 *s, const char *bucket, const char *key, const clt_s3_upload *u,
                           const char *const *etags, size_t n, clt_s3_condition condition, char etag[256]);
int clt_s3_upload_abort(clt_s3 *s, const char *bucket, const char *key, const char *upload_id);
int clt_s3_uploads(clt_s3 *s, const char *bucket, const char *prefix, clt_s3_listing *out);
/* The bytes of the parts that an upload has. */
int clt_s3_upload_bytes(clt_s3 *s, const char *bucket, const char *key, const char *upload_id,
                        uint64_t *bytes);

#endif
