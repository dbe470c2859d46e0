/* clt_s3_xml: responses of a store as structs. They are hostile: at most CLT_S3_XML_BYTES, 16 levels of
 * elements, no DTD and no entities other than the five of XML, texts of at most 8,192 bytes; elements that
 * are not known are skipped, an element that must be there and is absent is an error. Functions print nothing
 * and return EBADMSG when the text is not what it should be. */
#ifndef CLT_S3_XML_H
#define CLT_S3_XML_H

#include "runtime/base/clt_base.h"

enum { CLT_S3_XML_BYTES = 16 << 20 };

typedef struct {
    char code[64], message[256], request_id[128]; /* cut to fit; control characters are replaced by '?' */
    char region[64];                              /* of the bucket, where the store names it (wrong region) */
    double server_time; /* seconds since 1970 of RequestTimeTooSkewed; 0: not given */
} clt_s3_error;

typedef struct {
    char *key; /* decoded; as the store gave it: may be anything */
    uint64_t bytes;
    char *etag;      /* with its quotes; NULL in a list of uploads */
    char *upload_id; /* in a list of uploads */
    double modified; /* seconds since 1970 (LastModified, Initiated); 0: unknown */
} clt_s3_object;

typedef struct {
    clt_s3_object *objects;
    size_t n;
    clt_strv prefixes; /* CommonPrefixes: "folders", with the trailing delimiter */
    bool truncated;
    char *next; /* continuation token of the next page, or the next key marker of uploads; NULL: none */
    char *next_upload; /* next upload id marker */
} clt_s3_listing;

/* Whether the text is an <Error> document, also below another root element; *out is set only then. */
bool clt_s3_xml_error(const char *text, size_t bytes, clt_s3_error *out);
/* <ListBucketResult> (version 2), with keys in percent-encoding where the store says encoding-type=url;
 * <ListMultipartUploadsResult>. Adds to `out`, which begins as zeros; clt_s3_listing_free in any case. */
int clt_s3_xml_listing(const char *text, size_t bytes, clt_s3_listing *out);
void clt_s3_listing_free(clt_s3_listing *l);
/* <ListPartsResult>: adds the sizes of its parts to sum->bytes. EBADMSG also if they exceed 63 bits. */
typedef struct {
    uint64_t bytes;
    int64_t last; /* the part's number after which the next page begins */
    bool more;    /* there is one */
} clt_s3_part_sum;
int clt_s3_xml_part_sum(const char *text, size_t bytes, clt_s3_part_sum *sum);
/* <InitiateMultipartUploadResult>: *upload_id, to be freed. */
int clt_s3_xml_upload(const char *text, size_t bytes, char **upload_id);
/* <CompleteMultipartUploadResult>: *etag, to be freed; EIO if it holds an <Error>, which comes with status
 * 200. */
int clt_s3_xml_complete(const char *text, size_t bytes, char **etag, clt_s3_error *error);
/* The body of a complete request: <CompleteMultipartUpload>, etags[i] of part i + 1; to be freed. */
char *clt_s3_xml_parts(const char *const *etags, size_t n);

#endif
