/* The operations of an object store against a server that fails as the test scripts it. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/object/clt_http.h"
#include "runtime/object/clt_object.h"
#include "runtime/object/clt_s3.h"
#include "test/fake_server.h"

#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define ACCESS "AKIAIOSFODNN7EXAMPLE"
#define TOKEN "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQW"
#define REPLY(status, headers, body) "HTTP/1.1 " status "\r\n" headers "\r\n" body
#define OK(length, headers) REPLY("200 OK", "Content-Length: " #length "\r\n" headers, "")
/* A response whose end is that of the connection. */
#define ERROR(status, headers, code, more)                                                                   \
    {                                                                                                        \
        .reply = REPLY(status, headers "Content-Type: application/xml\r\n",                                  \
                       "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>" code                        \
                       "</Code><Message>why</Message>"                                                       \
                       "<RequestId>req-7</RequestId>" more "</Error>"),                                      \
        .ends = true                                                                                         \
    }
#define XML(root, body)                                                                                      \
    {                                                                                                        \
        .reply = REPLY("200 OK", "Content-Type: application/xml\r\n",                                        \
                       "<?xml version=\"1.0\" encoding=\"UTF-8\"?><" root                                    \
                       " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" body "</" root ">"),            \
        .ends = true                                                                                         \
    }

static fake_server *server;
static clt_s3 *s3;

static void start(const fake_step *steps, size_t n, bool token) {
    server = fake_start(steps, n);
    clt_s3_config c = {
        .endpoint = clt_strdup(fake_url(server)), .region = clt_strdup("us-east-1"), .path_style = true};
    c.credentials = (clt_s3_credentials){clt_strdup(ACCESS), clt_strdup(SECRET),
                                         token ? clt_strdup(TOKEN) : NULL, INFINITY, clt_strdup("test")};
    s3 = clt_s3_create(&c, 10);
}
#define START(steps) start(steps, CLT_COUNT_OF(steps), false)

/* All steps were taken, and no more. */
static void end(size_t steps) {
    assert_int_equal(fake_requests(server), steps);
    clt_http_cancel_all();
    clt_s3_destroy(s3);
    fake_stop(server);
}

static void says(const char *text) {
    if (!strstr(clt_s3_failure(), text)) fail_msg("'%s' does not say '%s'", clt_s3_failure(), text);
}

static void sent(size_t i, const char *text) {
    const char *r = fake_request(server, i);
    if (!r || !strstr(r, text)) fail_msg("request %zu lacks '%s': %s", i, text, r ? r : "(none)");
}

/* Sent with the lower-case header names, and in the signature. */
static void sent_signed(size_t i, const char *header) {
    char name[64];
    sent(i, header);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(header, ":"), header);
    const char *list = strstr(fake_request(server, i), "SignedHeaders=");
    assert_non_null(list);
    if (!strstr(list, name)) fail_msg("'%s' is not signed", name);
}

/* --- repeating --- */

static void test_repeats(void **state) {
    (void)state;
    const fake_step steps[] = {
        ERROR("503 Slow Down", "", "SlowDown", ""),
        {.reply = NULL},
        ERROR("400 Bad Request", "", "RequestTimeout", ""),
        ERROR("429 Too Many", "Retry-After: 1\r\n", "TooManyRequests", ""),
        {.reply = REPLY("500 Oops", "Content-Length: 0\r\n", "")},
        {.reply = OK(0, "ETag: \"e\"\r\n")},
    };
    START(steps);
    char etag[256] = "";
    double begun = clt_now();
    assert_int_equal(clt_s3_put(s3, "bucket", "a/b c+\xc3\xa4", "data", 4, CLT_S3_ANY, etag), 0);
    assert_true(clt_now() - begun >= 1 && clt_now() - begun < 9);
    assert_string_equal(etag, "\"e\"");
    sent(0, "PUT /bucket/a/b%20c%2B%C3%A4 HTTP/1.1");
    for (size_t i = 0; i < CLT_COUNT_OF(steps); i++)
        sent_signed(i, "x-amz-content-sha256: "
                       "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7");
    end(CLT_COUNT_OF(steps));
}

static void test_deadline(void **state) {
    (void)state;
    fake_step steps[40];
    for (size_t i = 0; i < CLT_COUNT_OF(steps); i++)
        steps[i] = (fake_step)ERROR("503 Slow Down", "", "SlowDown", "");
    START(steps);
    clt_s3_info info;
    double begun = clt_now(), before = clt_s3_limit(1.5);
    assert_int_equal(clt_s3_head(s3, "bucket", "key", &info), ETIMEDOUT);
    assert_true(clt_now() - begun < 2.5);
    says("cannot stat s3://bucket/key: HEAD: 503");
    says("until the deadline");
    assert_true(clt_s3_limit(before) == 1.5);
    assert_true(clt_object_counted().retries > 0);
    end(fake_requests(server));
}

/* "100 Continue" and then nothing is no response: the text is that of the connection. */
static void test_interim_response(void **state) {
    (void)state;
    fake_step steps[40];
    for (size_t i = 0; i < CLT_COUNT_OF(steps); i++)
        steps[i] = (fake_step){.reply = "HTTP/1.1 100 Continue\r\n\r\n", .ends = true};
    START(steps);
    char etag[256] = "";
    double before = clt_s3_limit(1);
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_ANY, etag), ETIMEDOUT);
    if (strstr(clt_s3_failure(), "PUT: 100")) fail_msg("%s", clt_s3_failure());
    clt_s3_limit(before);
    end(fake_requests(server));
}

/* --- reading --- */

static void test_resumes(void **state) {
    (void)state;
    static const char first[] =
        REPLY("206 Partial", "Content-Range: bytes 100-109/200\r\nContent-Length: 10\r\nETag: \"v1\"\r\n",
              "0123456789");
    const fake_step steps[] = {
        {.reply = first, .cut = sizeof first - 1 - 6},
        {.reply = NULL},
        {.reply =
             REPLY("206 Partial", "Content-Range: bytes 104-109/200\r\nContent-Length: 6\r\nETag: \"v1\"\r\n",
                   "456789")},
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""),
        {.reply =
             REPLY("206 Partial", "Content-Range: bytes 0-9/200\r\nContent-Length: 10\r\n", "0123456789")},
        {.reply = REPLY("416 Range", "Content-Range: bytes */200\r\nContent-Length: 0\r\n", "")},
    };
    START(steps);
    char got[20] = "";
    size_t n;
    clt_s3_info info;
    assert_int_equal(clt_s3_get(s3, "bucket", "key", NULL, got, 10, 100, &n, NULL), 0);
    assert_int_equal(n, 10);
    assert_string_equal(got, "0123456789");
    sent_signed(0, "range: bytes=100-109\r\n");
    sent_signed(2, "range: bytes=104-109\r\n");
    sent_signed(2, "if-match: \"v1\"\r\n");
    assert_int_equal(clt_s3_get(s3, "bucket", "key", "\"v1\"", got, 10, 110, &n, NULL), ESTALE);
    says("changed while it was read");
    assert_int_equal(clt_s3_get(s3, "bucket", "key", NULL, got, 10, 110, &n, NULL), EIO); /* other bytes */
    says("not what was asked for");
    assert_int_equal(clt_s3_get(s3, "bucket", "key", NULL, got, 10, 200, &n, &info), 0);
    assert_int_equal(n, 0);
    assert_int_equal(info.bytes, 200);
    end(CLT_COUNT_OF(steps));
}

/* --- what is corrected once --- */

static void test_skew(void **state) {
    (void)state;
    fake_step steps[] = {
        ERROR("403 Forbidden", "Date: %D\r\n", "RequestTimeTooSkewed", ""),
        {.reply = OK(3, "ETag: \"x\"\r\n")},
        {.reply = OK(3, "ETag: \"x\"\r\n")},
        {.reply = REPLY("403 Forbidden", "Date: %D\r\nContent-Length: 0\r\n", "")}, /* as HEAD is refused */
        {.reply = OK(3, "ETag: \"x\"\r\n")},
    };
    steps[0].skew = 1200;
    steps[3].skew = -4000;
    START(steps);
    clt_s3_info info;
    for (int i = 0; i < 3; i++) assert_int_equal(clt_s3_head(s3, "bucket", "key", &info), 0);
    char date[20];
    const double when[] = {0, 1200, 1200, 1200, -4000};
    for (size_t i = 0; i < CLT_COUNT_OF(when); i++) {
        const char *at = strstr(fake_request(server, i), "x-amz-date: ");
        assert_non_null(at);
        time_t t = (time_t)(clt_wall() + when[i]), near = 0;
        for (int d = -5; d <= 5 && !near; d++) {
            time_t u = t + d;
            strftime(date, sizeof date, "%Y%m%dT%H%M%SZ", gmtime(&u));
            if (!strncmp(at + 12, date, 16)) near = 1;
        }
        assert_true(near);
    }
    end(CLT_COUNT_OF(steps));
}

static void test_region(void **state) {
    (void)state;
    const fake_step steps[] = {
        ERROR("400 Bad Request", "", "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
        {.reply = OK(0, "ETag: \"x\"\r\n")},
        {.reply = REPLY("301 Moved", "x-amz-bucket-region: ap-south-1\r\nContent-Length: 0\r\n", "")},
        {.reply = OK(1, "ETag: \"x\"\r\n")},
        ERROR("301 Moved", "x-amz-bucket-region: us-west-2\r\n", "PermanentRedirect", ""),
        ERROR("301 Moved", "x-amz-bucket-region: us-west-1\r\n", "PermanentRedirect", ""),
    };
    START(steps);
    clt_s3_info info;
    char etag[256] = "", byte;
    size_t n;
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "", 0, CLT_S3_ANY, etag), 0);
    assert_int_equal(clt_s3_head(s3, "other", "key", &info), 0);
    assert_int_equal(clt_s3_get(s3, "other", "key", NULL, &byte, 1, 0, &n, NULL), EIO); /* once a call */
    says("another endpoint");
    static const char *const regions[] = {"/us-east-1/s3/",  "/eu-west-1/s3/",  "/us-east-1/s3/",
                                          "/ap-south-1/s3/", "/ap-south-1/s3/", "/us-west-2/s3/"};
    for (size_t i = 0; i < CLT_COUNT_OF(regions); i++) sent(i, regions[i]);
    end(CLT_COUNT_OF(steps));
}

/* Temporary credentials change in their file while the process runs. */
static void write_credentials(const char *file, const char *access) {
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fprintf(f, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n",
            access, SECRET, TOKEN);
    fclose(f);
}

static void test_expired(void **state) {
    (void)state;
    const fake_step steps[] = {
        ERROR("400 Bad Request", "", "ExpiredToken", ""),
        {.reply = OK(0, "ETag: \"x\"\r\n")},
        {.reply = OK(0, "ETag: \"x\"\r\n")},
        ERROR("400 Bad Request", "", "ExpiredToken", ""),
        ERROR("400 Bad Request", "", "ExpiredToken", ""),
    };
    char file[] = "/tmp/clt_s3_XXXXXX", etag[256] = "";
    close(mkstemp(file));
    write_credentials(file, "AKIAOLDOLDOLDOLDOLDO");
    server = fake_start(steps, CLT_COUNT_OF(steps));
    static const char *const others[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                                         "AWS_PROFILE",       "AWS_CONFIG_FILE",       "AWS_ENDPOINT_URL_S3"};
    for (size_t i = 0; i < CLT_COUNT_OF(others); i++) unsetenv(others[i]);
    setenv("AWS_SHARED_CREDENTIALS_FILE", file, 1);
    setenv("AWS_ENDPOINT_URL", fake_url(server), 1);
    clt_s3_config c;
    assert_int_equal(clt_s3_config_read(&c), CLT_OK);
    s3 = clt_s3_create(&c, 10);
    write_credentials(file, "AKIANEWNEWNEWNEWNEWN");
    for (int i = 0; i < 2; i++)
        assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_ANY, etag), 0);
    sent(0, "Credential=AKIAOLDOLDOLDOLDOLDO/");
    sent(1, "Credential=AKIANEWNEWNEWNEWNEWN/");
    sent(2, "Credential=AKIANEWNEWNEWNEWNEWN/");
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_ANY, etag), EKEYEXPIRED);
    says("the credentials expired");
    end(CLT_COUNT_OF(steps));
    unlink(file);
}

/* --- refusals, and what a text must not say --- */

static void test_refusals(void **state) {
    (void)state;
    const fake_step steps[] = {
        ERROR("403 Forbidden", "", "AccessDenied", ""),
        ERROR("403 Forbidden", "", "AccessDenied", ""),
        ERROR("403 Forbidden", "", "AccessDenied", ""),
        ERROR("403 Forbidden", "", "AccessDenied", ""),
        ERROR("403 Forbidden", "", "AccessDenied", ""),
        ERROR("404 Not Found", "", "NoSuchBucket", ""),
        ERROR("507 Full", "", "XMinioStorageFull", ""),
        ERROR("403 Forbidden", "", "Signature=abc", "<X>" ACCESS "</X>"),
        {.reply = REPLY("403 Forbidden", "x-amz-request-id: " ACCESS "\r\n",
                        "<Error><Code>SignatureDoesNotMatch</Code><Message>" ACCESS " with " TOKEN
                        "</Message></Error>"),
         .ends = true},
    };
    start(steps, CLT_COUNT_OF(steps), true);
    char byte, etag[256] = "", *id = "id";
    size_t n;
    clt_s3_listing l = {0};
    assert_int_equal(clt_s3_get(s3, "bucket", "k\n1", NULL, &byte, 1, 0, &n, NULL), EACCES);
    says("cannot get s3://bucket/k?1: GET: 403 AccessDenied: why (request id req-7); the credentials lack "
         "s3:GetObject");
    assert_int_equal(clt_s3_put(s3, "bucket", "k", "", 0, CLT_S3_ANY, etag), EACCES);
    says("s3:PutObject");
    assert_int_equal(clt_s3_list(s3, "bucket", "k", NULL, 0, &l), EACCES);
    says("s3:ListBucket");
    assert_int_equal(clt_s3_delete(s3, "bucket", "k"), EACCES);
    says("s3:DeleteObject");
    assert_int_equal(clt_s3_upload_abort(s3, "bucket", "k", id), EACCES);
    says("s3:AbortMultipartUpload");
    assert_int_equal(clt_s3_put(s3, "bucket", "k", "", 0, CLT_S3_ANY, etag), ENODEV);
    says("no bucket bucket");
    assert_int_equal(clt_s3_put(s3, "bucket", "k", "", 0, CLT_S3_ANY, etag), ENOSPC);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(clt_s3_put(s3, "bucket", "k", "", 0, CLT_S3_ANY, etag), EACCES);
        const char *text = clt_s3_failure();
        assert_null(strstr(text, ACCESS));
        assert_null(strstr(text, TOKEN));
        assert_null(strstr(text, "Signature="));
    }
    says("the secret key is not");
    assert_int_equal(clt_s3_put(s3, "bucket/x", "k", "", 0, CLT_S3_ANY, etag), EINVAL);
    clt_s3_listing_free(&l);
    end(CLT_COUNT_OF(steps));
}

/* --- writing on a condition --- */

/* The response to a put is lost, and its repetition is refused: whose object is there? */
static void test_own_object(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = NULL},
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""),
        {.reply = OK(1, "ETag: \"mine\"\r\nx-amz-meta-cltrain-writer: %W\r\n")},
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""), /* the probe of conditions */
        {.reply = NULL},
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""),
        {.reply = OK(1, "ETag: \"theirs\"\r\nx-amz-meta-cltrain-writer: 0\r\n")},
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""), /* nothing was lost: no question */
        ERROR("409 Conflict", "", "ConditionalRequestConflict", ""),
        ERROR("404 Not Found", "", "NoSuchKey", ""), /* as AWS answers If-Match of what is gone */
    };
    START(steps);
    char etag[256] = "";
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_IF_ABSENT, etag), 0);
    assert_string_equal(etag, "\"mine\"");
    sent_signed(0, "if-none-match: *\r\n");
    sent_signed(0, "x-amz-meta-cltrain-writer: ");
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_IF_ABSENT, etag), EEXIST);
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_IF_MATCH, etag), ESTALE);
    sent_signed(7, "if-match: \"mine\"\r\n");
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_IF_MATCH, etag), ESTALE);
    end(CLT_COUNT_OF(steps));
}

/* libcurl sends a request again by itself when a connection that was kept breaks: the first one may have had
 * its effect. */
static void test_own_object_on_a_kept_connection(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = OK(1, "ETag: \"old\"\r\n")},
        {.reply = NULL},
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""),
        {.reply = OK(1, "ETag: \"mine\"\r\nx-amz-meta-cltrain-writer: %W\r\n")},
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""), /* the probe of conditions */
    };
    for (size_t bytes = 0; bytes < 2; bytes++) {
        START(steps);
        clt_s3_info info;
        char etag[256] = "";
        assert_int_equal(clt_s3_head(s3, "bucket", "other", &info), 0);
        assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", bytes, CLT_S3_IF_ABSENT, etag), 0);
        assert_string_equal(etag, "\"mine\"");
        end(CLT_COUNT_OF(steps));
    }
}

/* A store that accepts every put. */
static void test_conditions_are_probed(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = OK(0, "ETag: \"a\"\r\n")}, {.reply = OK(0, "ETag: \"a\"\r\n")},
        {.reply = OK(0, "ETag: \"a\"\r\n")}, ERROR("412 Precondition Failed", "", "PreconditionFailed", ""),
        {.reply = OK(0, "ETag: \"b\"\r\n")}, ERROR("501 Not Implemented", "", "NotImplemented", "")};
    START(steps);
    char etag[256] = "";
    assert_int_equal(clt_s3_put(s3, "bucket", "key", "x", 1, CLT_S3_IF_ABSENT, etag), ENOTSUP);
    says("ignores If-None-Match");
    assert_int_equal(clt_s3_put(s3, "bucket", "other", "x", 1, CLT_S3_IF_ABSENT, etag), ENOTSUP);
    assert_int_equal(clt_s3_put(s3, "good", "key", "x", 1, CLT_S3_IF_ABSENT, etag), 0);
    assert_int_equal(clt_s3_put(s3, "good", "other", "x", 1, CLT_S3_IF_ABSENT, etag), 0);
    assert_string_equal(etag, "\"b\"");
    assert_int_equal(clt_s3_put(s3, "third", "key", "x", 1, CLT_S3_IF_ABSENT, etag), ENOTSUP);
    end(CLT_COUNT_OF(steps));
}

/* --- multipart uploads --- */

static void test_complete(void **state) {
    (void)state;
    const fake_step steps[] = {
        XML("InitiateMultipartUploadResult", "<Bucket>bucket</Bucket><Key>key</Key><UploadId>u-1</UploadId>"),
        {.reply = OK(0, "ETag: \"p1\"\r\n")},
        ERROR("200 OK", "", "InternalError", ""),
        XML("CompleteMultipartUploadResult", "<ETag>&quot;whole-1&quot;</ETag>"),
        {.reply = NULL}, /* lost; then the upload is gone, because it is complete */
        ERROR("404 Not Found", "", "NoSuchUpload", ""),
        {.reply = OK(1, "ETag: \"whole-1\"\r\nx-amz-meta-cltrain-writer: %W\r\n")},
        ERROR("404 Not Found", "", "NoSuchUpload", ""),
        {.reply = REPLY("404 Not Found", "Content-Length: 0\r\n", "")}, /* HEAD: absent */
        ERROR("200 OK", "", "AccessDenied", ""),
        {.reply = OK(1, "ETag: \"there\"\r\n")}, /* HEAD: it exists */
        {.reply = REPLY("204 No Content", "", "")},
        ERROR("404 Not Found", "", "NoSuchUpload", ""),
    };
    START(steps);
    clt_s3_upload u;
    char part[256], etag[256] = "";
    const char *parts[] = {part}, *body;
    assert_int_equal(clt_s3_upload_begin(s3, "bucket", "key", &u), 0);
    assert_string_equal(u.id, "u-1");
    sent(0, "POST /bucket/key?uploads= HTTP/1.1");
    assert_int_equal(clt_s3_upload_part(s3, "bucket", "key", &u, 1, "x", 1, part), 0);
    sent(1, "PUT /bucket/key?partNumber=1&uploadId=u-1 HTTP/1.1");
    assert_int_equal(clt_s3_upload_complete(s3, "bucket", "key", &u, parts, 1, CLT_S3_ANY, etag), 0);
    assert_string_equal(etag, "\"whole-1\"");
    assert_true(fake_body(server, 3, &body) > 0);
    assert_non_null(strstr(body, "<PartNumber>1</PartNumber>"));
    assert_int_equal(clt_s3_upload_complete(s3, "bucket", "key", &u, parts, 1, CLT_S3_ANY, etag), 0);
    assert_int_equal(clt_s3_upload_complete(s3, "bucket", "key", &u, parts, 1, CLT_S3_ANY, etag), ENOENT);
    assert_int_equal(clt_s3_upload_complete(s3, "bucket", "key", &u, parts, 1, CLT_S3_IF_ABSENT, etag), EIO);
    says("AccessDenied");
    sent_signed(9, "if-none-match: *\r\n");
    assert_int_equal(clt_s3_upload_complete(s3, "bucket", "key", &u, parts, 1, CLT_S3_IF_ABSENT, etag),
                     EEXIST);
    assert_int_equal(clt_s3_upload_abort(s3, "bucket", "key", u.id), 0);
    assert_int_equal(clt_s3_upload_abort(s3, "bucket", "key", u.id), 0); /* gone is aborted */
    clt_s3_upload_free(&u);
    end(CLT_COUNT_OF(steps));
}

/* An <Error> with status 200 may come after the upload was completed, too. */
static void test_complete_after_an_error(void **state) {
    (void)state;
    const fake_step steps[] = {
        XML("InitiateMultipartUploadResult", "<Bucket>bucket</Bucket><Key>key</Key><UploadId>u-1</UploadId>"),
        ERROR("200 OK", "", "InternalError", ""),
        ERROR("404 Not Found", "", "NoSuchUpload", ""),
        {.reply = OK(1, "ETag: \"whole-1\"\r\nx-amz-meta-cltrain-writer: %W\r\n")},
        {.reply = REPLY("404 Not Found", "Content-Length: 0\r\n", "")}, /* HEAD: absent */
        ERROR("200 OK", "", "InternalError", ""),
        ERROR("412 Precondition Failed", "", "PreconditionFailed", ""),
        {.reply = OK(1, "ETag: \"whole-2\"\r\nx-amz-meta-cltrain-writer: %W\r\n")},
    };
    START(steps);
    clt_s3_upload u;
    char etag[256] = "";
    const char *parts[] = {"\"p1\""};
    assert_int_equal(clt_s3_upload_begin(s3, "bucket", "key", &u), 0);
    assert_int_equal(clt_s3_upload_complete(s3, "bucket", "key", &u, parts, 1, CLT_S3_ANY, etag), 0);
    assert_string_equal(etag, "\"whole-1\"");
    assert_int_equal(clt_s3_upload_complete(s3, "bucket", "key", &u, parts, 1, CLT_S3_IF_ABSENT, etag), 0);
    assert_string_equal(etag, "\"whole-2\"");
    clt_s3_upload_free(&u);
    end(CLT_COUNT_OF(steps));
}

/* --- lists --- */

#define PAGE(more, body) XML("ListBucketResult", "<EncodingType>url</EncodingType>" more body)
#define KEY(k) "<Contents><Key>" k "</Key><Size>5</Size><ETag>&quot;e&quot;</ETag></Contents>"
#define MORE(token) "<IsTruncated>true</IsTruncated><NextContinuationToken>" token "</NextContinuationToken>"
#define LAST "<IsTruncated>false</IsTruncated>"

static void test_lists(void **state) {
    (void)state;
    const fake_step steps[] = {
        PAGE(MORE("t 1/2"), KEY("a%2Fx%20y") "<CommonPrefixes><Prefix>a%2Fdir%2F</Prefix></CommonPrefixes>"),
        ERROR("503 Slow Down", "", "SlowDown", ""),
        PAGE(LAST, KEY("a%2Fb%0Ac") KEY("a%2F..%2Fz") KEY("a%2F")),
        PAGE(MORE("same"), KEY("a%2Fx")),
        PAGE(MORE("same"), KEY("a%2Fy")),
        PAGE(LAST, KEY("other")),
        PAGE(MORE("t"), KEY("a%2Fx")), /* enough after one page */
        {.reply = REPLY("200 OK", "", "<html>it works</html>"), .ends = true},
    };
    START(steps);
    clt_s3_listing l = {0};
    assert_int_equal(clt_s3_list(s3, "bucket", "a/", "/", 0, &l), 0);
    assert_int_equal(l.n, 4);
    assert_int_equal(l.prefixes.n, 1);
    assert_string_equal(l.objects[0].key, "a/x y");
    assert_string_equal(l.objects[1].key, "a/b\nc");
    assert_string_equal(l.objects[2].key, "a/../z"); /* what to make of it is the caller's decision */
    assert_true(l.objects[0].bytes == 5);
    sent(0, "GET /bucket?list-type=2&encoding-type=url&prefix=a%2F&delimiter=%2F HTTP/1.1");
    sent(2, "continuation-token=t%201%2F2");
    clt_s3_listing_free(&l);
    l = (clt_s3_listing){0};
    assert_int_equal(clt_s3_list(s3, "bucket", "a/", NULL, 0, &l), EIO); /* would go on for ever */
    clt_s3_listing_free(&l);
    l = (clt_s3_listing){0};
    assert_int_equal(clt_s3_list(s3, "bucket", "a/", NULL, 0, &l), EIO); /* not below the prefix */
    clt_s3_listing_free(&l);
    l = (clt_s3_listing){0};
    assert_int_equal(clt_s3_list(s3, "bucket", "a/", NULL, 1, &l), 0);
    sent(6, "max-keys=1");
    clt_s3_listing_free(&l);
    l = (clt_s3_listing){0};
    assert_int_equal(clt_s3_list(s3, "bucket", "a/", NULL, 0, &l), EIO);
    clt_s3_listing_free(&l);
    end(CLT_COUNT_OF(steps));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_interim_response),
        cmocka_unit_test(test_resumes),
        cmocka_unit_test(test_skew),
        cmocka_unit_test(test_region),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_expired),
        cmocka_unit_test(test_own_object),
        cmocka_unit_test(test_own_object_on_a_kept_connection),
        cmocka_unit_test(test_conditions_are_probed),
        cmocka_unit_test(test_complete),
        cmocka_unit_test(test_complete_after_an_error),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
