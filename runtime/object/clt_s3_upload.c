/* Multipart uploads. */
#include <errno.h>
#include <string.h>

#include "runtime/object/clt_s3_internal.h"

int clt_s3_upload_begin(clt_s3 *s, const char *bucket, const char *key, clt_s3_upload *out) {
    *out = (clt_s3_upload){0};
    clt_s3_writer(out->writer);
    clt_s3_call c = {.verb = "put", .right = "s3:PutObject", .method = "POST", .bucket = bucket, .key = key};
    clt_s3_call_query(&c, "uploads", "");
    clt_s3_call_header(&c, "x-amz-meta-cltrain-writer", out->writer);
    int e = clt_s3_call_run(s, &c);
    const char *text = c.response.text ? c.response.text : "";
    if (!e && clt_s3_xml_upload(text, c.response.text_bytes, &out->id))
        e = clt_s3_fail(EIO, "cannot put s3://%s/%s: POST: the response names no upload", bucket, key);
    clt_s3_call_free(&c);
    return e;
}

void clt_s3_upload_free(clt_s3_upload *u) {
    clt_free(u->id);
    u->id = NULL;
}

int clt_s3_upload_part(clt_s3 *s, const char *bucket, const char *key, const clt_s3_upload *u, int number,
                       const void *data, size_t bytes, char etag[256]) {
    char part[16];
    snprintf(part, sizeof part, "%d", number);
    clt_s3_call c = {.verb = "put",
                     .right = "s3:PutObject",
                     .method = "PUT",
                     .bucket = bucket,
                     .key = key,
                     .body = data,
                     .body_bytes = bytes};
    clt_s3_call_query(&c, "partNumber", part);
    clt_s3_call_query(&c, "uploadId", u->id);
    int e = clt_s3_call_run(s, &c);
    if (!e && !*c.response.etag)
        e = clt_s3_fail(EIO, "cannot put s3://%s/%s: PUT: part %d has no ETag", bucket, key, number);
    if (!e) memcpy(etag, c.response.etag, 256);
    clt_s3_call_free(&c);
    return e;
}

static int exists(const char *bucket, const char *key) {
    return clt_s3_fail(EEXIST, "s3://%s/%s exists already", bucket, key);
}

/* 0: absent. */
static int check_absent(clt_s3 *s, const char *bucket, const char *key) {
    clt_s3_info info;
    int e = clt_s3_head(s, bucket, key, &info);
    if (!e) return exists(bucket, key);
    return e == ENOENT ? 0 : e;
}

static int take_complete(clt_s3_call *c, char etag[256]) {
    char *name = NULL;
    clt_s3_error error;
    const char *text = c->response.text ? c->response.text : "";
    if (clt_s3_xml_complete(text, c->response.text_bytes, &name, &error))
        return clt_s3_fail(EIO, "cannot put s3://%s/%s: POST: the response names no object", c->bucket,
                           c->key);
    snprintf(etag, 256, "%s", name);
    clt_free(name);
    return 0;
}

int clt_s3_upload_complete(clt_s3 *s, const char *bucket, const char *key, const clt_s3_upload *u,
                           const char *const *etags, size_t n, clt_s3_condition condition, char etag[256]) {
    char old[256];
    snprintf(old, sizeof old, "%s", etag);
    int e = condition == CLT_S3_IF_ABSENT ? check_absent(s, bucket, key) : 0;
    if (e) return e;
    char *parts = clt_s3_xml_parts(etags, n);
    clt_s3_call c = {.verb = "put",
                     .right = "s3:PutObject",
                     .method = "POST",
                     .bucket = bucket,
                     .key = key,
                     .body = parts,
                     .body_bytes = strlen(parts),
                     .patient = true,
                     .holds_error = true};
    clt_s3_call_query(&c, "uploadId", u->id);
    clt_s3_call_condition(&c, condition, old);
    e = clt_s3_call_run(s, &c);
    if (!e) {
        e = take_complete(&c, etag);
    } else if ((e == ESTALE || e == ENOENT || e == EIO) && clt_s3_is_own(s, &c, u->writer, etag)) {
        e = 0; /* the upload is gone because an earlier attempt completed it */
    } else if (e == ESTALE && condition == CLT_S3_IF_ABSENT) {
        e = exists(bucket, key);
    }
    clt_s3_call_free(&c);
    clt_free(parts);
    return e;
}

int clt_s3_upload_abort(clt_s3 *s, const char *bucket, const char *key, const char *upload_id) {
    clt_s3_call c = {.verb = "abort the upload of",
                     .right = "s3:AbortMultipartUpload",
                     .method = "DELETE",
                     .bucket = bucket,
                     .key = key};
    clt_s3_call_query(&c, "uploadId", upload_id);
    int e = clt_s3_call_run(s, &c);
    clt_s3_call_free(&c);
    if (e == ENOENT) clt_s3_forget();
    return e == ENOENT ? 0 : e;
}

static int uploads_page(clt_s3 *s, const char *bucket, const char *prefix, clt_s3_listing *out) {
    char *key = out->next, *upload = out->next_upload;
    size_t n = out->n;
    out->next = out->next_upload = NULL;
    clt_s3_call c = {.verb = "list the uploads of",
                     .right = "s3:ListBucketMultipartUploads",
                     .method = "GET",
                     .bucket = bucket,
                     .key = ""};
    /* Without encoding-type=url: SeaweedFS then says that keys are encoded, but does not encode them. */
    clt_s3_call_query(&c, "uploads", "");
    clt_s3_call_query(&c, "prefix", prefix);
    clt_s3_call_query(&c, "key-marker", key);
    clt_s3_call_query(&c, "upload-id-marker", upload);
    int e = clt_s3_call_run(s, &c);
    const char *text = c.response.text ? c.response.text : "";
    bool valid = e || !clt_s3_xml_listing(text, c.response.text_bytes, out);
    for (; !e && valid && n < out->n; n++)
        valid = out->objects[n].upload_id && !strncmp(out->objects[n].key, prefix, strlen(prefix));
    if (!e && out->truncated)
        valid = valid && out->next &&
                !(key && !strcmp(key, out->next) && upload && out->next_upload &&
                  !strcmp(upload, out->next_upload));
    if (!valid)
        e = clt_s3_fail(EIO, "cannot list the uploads of s3://%s/%s: GET: the list is malformed", bucket,
                        prefix);
    clt_free(key);
    clt_free(upload);
    clt_s3_call_free(&c);
    return e;
}

int clt_s3_uploads(clt_s3 *s, const char *bucket, const char *prefix, clt_s3_listing *out) {
    int e;
    do e = uploads_page(s, bucket, prefix, out);
    while (!e && out->truncated);
    return e;
}

int clt_s3_upload_bytes(clt_s3 *s, const char *bucket, const char *key, const char *upload_id,
                        uint64_t *bytes) {
    clt_s3_part_sum sum = {.more = true};
    int e = 0;
    while (sum.more && !e) {
        char marker[24];
        const int64_t before = sum.last;
        snprintf(marker, sizeof marker, "%lld", (long long)before);
        clt_s3_call c = {.verb = "list the parts of",
                         .right = "s3:ListMultipartUploadParts",
                         .method = "GET",
                         .bucket = bucket,
                         .key = key};
        clt_s3_call_query(&c, "uploadId", upload_id);
        if (before) clt_s3_call_query(&c, "part-number-marker", marker);
        e = clt_s3_call_run(s, &c);
        const char *text = c.response.text ? c.response.text : "";
        if (!e &&
            (clt_s3_xml_part_sum(text, c.response.text_bytes, &sum) || (sum.more && sum.last <= before)))
            e = clt_s3_fail(EIO, "cannot list the parts of s3://%s/%s: GET: the list is malformed", bucket,
                            key);
        clt_s3_call_free(&c);
    }
    if (!e) *bytes = sum.bytes;
    return e;
}
