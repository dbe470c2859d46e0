/* Signatures: the examples of Amazon's documentation, and requests that botocore signed
 * (test/golden/s3/sign.json). */
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/object/clt_s3_sign.h"
#include "test/test_util.h"

static const char empty_sha256[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

static const char *header_of(const clt_strv *headers, const char *name) {
    const size_t n = strlen(name);
    for (size_t i = 0; i < headers->n; i++)
        if (!strncmp(headers->v[i], name, n) && !strncmp(headers->v[i] + n, ": ", 2))
            return headers->v[i] + n + 2;
    fail_msg("no header %s", name);
    return NULL;
}

/* "Signature Calculations for the Authorization Header", "Authenticating Requests: Using Query Parameters".
 */
static clt_s3_request_to_sign amazons(void) {
    return (clt_s3_request_to_sign){.method = "GET",
                                    .host = "examplebucket.s3.amazonaws.com",
                                    .path = "/",
                                    .payload_sha256 = empty_sha256,
                                    .time = 1369353600, /* 2013-05-24 */
                                    .region = "us-east-1",
                                    .service = "s3",
                                    .access_key = "AKIAIOSFODNN7EXAMPLE",
                                    .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
}

static void expect_signature(const clt_s3_request_to_sign *r, const char *want) {
    clt_strv headers = {0};
    clt_s3_sign(r, &headers);
    const char *found = strstr(header_of(&headers, "authorization"), "Signature=");
    assert_non_null(found);
    assert_string_equal(found + 10, want);
    clt_strv_free(&headers);
}

static void amazons_examples(void **state) {
    (void)state;
    clt_s3_request_to_sign get = amazons();
    get.path = "/test.txt";
    get.headers = (clt_s3_pair[]){{"range", "bytes=0-9"}};
    get.n_headers = 1;
    expect_signature(&get, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

    clt_s3_request_to_sign put = amazons();
    char sha[CLT_SHA256_HEX];
    clt_sha256_hex("Welcome to Amazon S3.", 21, sha);
    assert_string_equal(sha, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
    put.method = "PUT", put.path = "/test$file.text", put.payload_sha256 = sha;
    put.headers = (clt_s3_pair[]){{"x-amz-storage-class", "REDUCED_REDUNDANCY"},
                                  {"date", "Fri, 24 May 2013 00:00:00 GMT"}};
    put.n_headers = 2;
    expect_signature(&put, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");

    clt_s3_request_to_sign lifecycle = amazons();
    lifecycle.query = (clt_s3_pair[]){{"lifecycle", ""}};
    lifecycle.n_query = 1;
    expect_signature(&lifecycle, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");

    clt_s3_request_to_sign list = amazons();
    list.query = (clt_s3_pair[]){{"prefix", "J"}, {"max-keys", "2"}};
    list.n_query = 2;
    expect_signature(&list, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void amazons_presigned_example(void **state) {
    (void)state;
    clt_s3_request_to_sign r = amazons();
    r.path = "/test.txt";
    char *query = clt_s3_presign(&r, 86400);
    assert_string_equal(query,
                        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F"
                        "us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&"
                        "X-Amz-SignedHeaders=host&X-Amz-Signature="
                        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
    clt_free(query);
}

/* --- botocore --- */

static const char *text_of(json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

static size_t pairs_of(json_t *list, clt_s3_pair *out) {
    size_t n = 0;
    for (; n < json_array_size(list); n++) {
        json_t *pair = json_array_get(list, n);
        out[n] = (clt_s3_pair){json_string_value(json_array_get(pair, 0)),
                               json_string_value(json_array_get(pair, 1))};
    }
    return n;
}

static void botocore_signs_the_same(void **state) {
    (void)state;
    json_t *file;
    int presigned = 0;
    assert_int_equal(clt_json_load("test/golden/s3/sign.json", 1 << 20, 8, &file), CLT_OK);
    json_t *cases = json_object_get(file, "cases");
    assert_true(json_array_size(cases) >= 40);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i);
        clt_s3_pair query[8], extra[8];
        const clt_s3_request_to_sign r = {.method = text_of(c, "method"),
                                          .host = text_of(c, "host"),
                                          .path = text_of(c, "path"),
                                          .query = query,
                                          .n_query = pairs_of(json_object_get(c, "query"), query),
                                          .headers = extra,
                                          .n_headers = pairs_of(json_object_get(c, "headers"), extra),
                                          .payload_sha256 = text_of(c, "payload_sha256"),
                                          .time = json_integer_value(json_object_get(c, "time")),
                                          .region = text_of(c, "region"),
                                          .service = "s3",
                                          .access_key = text_of(file, "access_key"),
                                          .secret_key = text_of(file, "secret_key"),
                                          .session_token = text_of(c, "session_token")};
        clt_strv headers = {0};
        clt_s3_sign(&r, &headers);
        assert_string_equal(header_of(&headers, "authorization"), text_of(c, "authorization"));
        clt_strv_free(&headers);
        if (!text_of(c, "presigned")) continue;
        char *url = clt_s3_presign(&r, 3600);
        assert_string_equal(strstr(url, "X-Amz-Signature=") + 16, text_of(c, "presigned"));
        clt_free(url);
        presigned++;
    }
    assert_true(presigned >= 20);
    json_decref(file);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    static const struct CMUnitTest tests[] = {cmocka_unit_test(amazons_examples),
                                              cmocka_unit_test(amazons_presigned_example),
                                              cmocka_unit_test(botocore_signs_the_same)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
