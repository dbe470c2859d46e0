/* clt_s3: the operations of an object store on one bucket, signed and repeated. A failure that can pass
 * (clt_http's errno values but ECANCELED, EPROTO and EMSGSIZE; status 408, 429, 500, 502, 503, 504; a 200
 * that holds an <Error> of that kind) is repeated after 0.2 s x 2^k with full jitter, at most 20 s, or as
 * long as Retry-After says (at most 60 s), until the deadline of the call. A clock that differs by minutes
 * (RequestTimeTooSkewed) is corrected once by the server's; expired credentials are read again once; the
 * region that the store names is taken once.
 *
 * Functions return 0 or an errno value and print nothing; clt_s3_failure tells the calling thread the last
 * failure: "cannot get s3://bucket/key: 403 AccessDenied (request id ...): the credentials lack
 * s3:GetObject". ENOENT: no such key; ENODEV: no such bucket; EACCES: refused (the text names the missing
 * right); EEXIST: the condition of a conditional put does not hold; ESTALE: the object changed (If-Match);
 * ENOSPC: store full; ETIMEDOUT: the deadline; EKEYEXPIRED: credentials expired; EIO: anything else. They may
 * be called from several threads at once. */
#ifndef CLT_S3_H
#define CLT_S3_H

#include "runtime/object/clt_s3_config.h"
#include "runtime/object/clt_s3_xml.h"

typedef struct clt_s3 clt_s3;

typedef struct {
    uint64_t bytes;
    char etag[256];
    double modified; /* seconds since 1970; 0: unknown */
} clt_s3_info;

/* One store; `config` is taken over. `seconds` is the deadline of each call (CLTRAIN_S3_TIMEOUT, default
 * 600), of which repetitions are a part. */
clt_s3 *clt_s3_create(clt_s3_config *config, double seconds);
void clt_s3_destroy(clt_s3 *s); /* NULL is allowed; no call may be in progress */
/* Text of this thread's last failure, "" if there was none; valid until its next call. */
const char *clt_s3_failure(void);

int clt_s3_head(clt_s3 *s, const char *bucket, const char *key, clt_s3_info *out);
/* Bytes [offset, offset + bytes) into dst; *got may be fewer at the end of the object (0 behind it). etag:
 * not NULL and not "": only of this version (ESTALE otherwise). out may be NULL. A body that breaks off is
 * resumed at the byte where it did. */
int clt_s3_get(clt_s3 *s, const char *bucket, const char *key, const char *etag, void *dst, size_t bytes,
               uint64_t offset, size_t *got, clt_s3_info *out);

typedef enum { CLT_S3_ANY, CLT_S3_IF_ABSENT, CLT_S3_IF_MATCH } clt_s3_condition;
/* One PUT with the SHA-256 of the bytes. etag[256]: of CLT_S3_IF_MATCH, and receives the new one. A put that
 * was repeated may find its own object: then a conditional put compares what is there with what it sent
 * before it says EEXIST. A store without conditional puts (501, or it ignores them: probed once) is ENOTSUP.
 */
int clt_s3_put(clt_s3 *s, const char *bucket, const char *key, const void *data, size_t bytes,
               clt_s3_condition condition, char etag[256]);
int clt_s3_delete(clt_s3 *s, const char *bucket, const char *key); /* absent is 0 */
/* Objects whose key begins with `prefix`, all pages. With `delimiter` ("/") only those without another
 * delimiter behind the prefix, and the common prefixes. Keys that do not begin with `prefix` are EBADMSG. */
int clt_s3_list(clt_s3 *s, const char *bucket, const char *prefix, const char *delimiter,
                clt_s3_listing *out);

/* --- multipart uploads --- */
int clt_s3_upload_begin(clt_s3 *s, const char *bucket, const char *key, char **upload_id);
/* Part `number` (from 1), of at least 5 MiB but for the last; etag receives its name for complete. */
int clt_s3_upload_part(clt_s3 *s, const char *bucket, const char *key, const char *upload_id, int number,
                       const void *data, size_t bytes, char etag[256]);
/* One object of the parts 1 to n. */
int clt_s3_upload_complete(clt_s3 *s, const char *bucket, const char *key, const char *upload_id,
                           const char *const *etags, size_t n, clt_s3_condition condition, char etag[256]);
int clt_s3_upload_abort(clt_s3 *s, const char *bucket, const char *key, const char *upload_id);
int clt_s3_uploads(clt_s3 *s, const char *bucket, const char *prefix, clt_s3_listing *out);

#endif
