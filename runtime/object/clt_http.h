/* clt_http: HTTP requests over libcurl's multi interface. One thread of this process moves the bytes of all
 * requests; it starts with the first one. Connections are kept and used again (HTTP/1.1). A request is sent
 * once, but for `resent`: repeating it is clt_s3's business. TLS is verified (AWS_CA_BUNDLE names other
 * authorities), redirects are not followed, only http and https are spoken; proxies are those of libcurl's
 * environment variables, but none for loopback and link-local addresses. After fork the child begins without
 * connections and without requests.
 *
 * Functions print nothing. They may be called from several threads. */
#ifndef CLT_HTTP_H
#define CLT_HTTP_H

#include "runtime/base/clt_base.h"

typedef struct {
    const char *method;         /* "GET", "PUT", "POST", "HEAD", "DELETE" */
    const char *url;            /* encoded, complete */
    const char *const *headers; /* "name: value" */
    size_t n_headers;
    const void *body; /* PUT and POST; borrowed until the request ends */
    size_t body_bytes;
    void *into;        /* where the body of a 2xx response goes, NULL: into response->text */
    size_t into_bytes; /* at most this much: more is EMSGSIZE */
    double seconds;    /* deadline of the whole request; < 1 KiB/s for 30 s ends it, too, unless `patient` */
    bool patient;      /* the server may think for long before it responds */
    bool ask_first;    /* sends the body only after "100 Continue" or 1 s: a refusal is then seen in any case,
                        * while a server that closes a connection with unread bytes may destroy its response */
} clt_http_request;

typedef struct {
    int status;   /* 0: there was no response */
    size_t bytes; /* of the body in `into` */
    char *text;   /* the body otherwise (at most 16 MiB + a NUL); to be freed by clt_http_response_free */
    size_t text_bytes;
    uint64_t content_length; /* UINT64_MAX: not given */
    /* Headers, "" if not given, longer than this, or with control characters. range: Content-Range; modified:
     * Last-Modified; request_id: x-amz-request-id; region: x-amz-bucket-region; writer:
     * x-amz-meta-cltrain-writer */
    char etag[256], request_id[128], range[128], date[64], modified[64], region[64], retry_after[64],
        writer[64];
    char error[256]; /* libcurl's text when status is 0 or the body broke off */
    double seconds;  /* the request took */
    bool resent; /* libcurl sent it again, because a connection that was kept broke without a response: the
                  * server may have had it twice. With libcurl before 7.80 only seen if there is a body. */
} clt_http_response;

/* Sends and waits. 0: a complete response of any status. ETIMEDOUT: the deadline, or no bytes for 30 s;
 * ECONNRESET: the connection broke, or the body is shorter than announced; ECONNREFUSED, EHOSTUNREACH (name
 * or route), EPROTO (TLS: certificate or handshake; no HTTP), EMSGSIZE (body larger than into_bytes),
 * ECANCELED (clt_http_cancel_all, or clt_io_stop_heeded), EINVAL (no URL), ENOMEM. *out is set in any case.
 */
int clt_http_perform(const clt_http_request *r, clt_http_response *out);
void clt_http_response_free(clt_http_response *r);
/* A date of HTTP in seconds since 1970; 0: it is none. */
double clt_http_date(const char *text);

/* Ends all requests with ECANCELED, the thread and the connections. A later request starts them again. The
 * end of the process does the same, before the TLS library is taken down. */
void clt_http_cancel_all(void);

typedef struct {
    uint64_t requests, connections, bytes_up, bytes_down;
} clt_http_totals;
clt_http_totals clt_http_counted(void);

#endif
