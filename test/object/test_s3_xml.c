/* Responses of stores: as Amazon documents them and SeaweedFS and moto write them, and hostile ones. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/object/clt_s3_xml.h"
#include "test/golden_util.h"
#include "test/test_util.h"

#define HEAD "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define NAMESPACE " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

static const char list_text[] = HEAD
    "<ListBucketResult" NAMESPACE "><Name>b</Name><Prefix>a%2F</Prefix><KeyCount>2</KeyCount>"
    "<MaxKeys>1000</MaxKeys><Delimiter>%2F</Delimiter><IsTruncated>true</IsTruncated>"
    "<Contents><Key>a%2Fwith+space%2Bplus</Key><LastModified>2026-11-27T17:00:01.500Z</LastModified>"
    "<ETag>&#34;abc&#34;</ETag><Size>18446744073709</Size><StorageClass>STANDARD</StorageClass></Contents>"
    "<Contents><Key>a%2F%C3%BC</Key><ETag>&quot;d-2&quot;</ETag><Size>0</Size><Owner><ID>x</ID></Owner></"
    "Contents>"
    "<CommonPrefixes><Prefix>a%2Fsub%2F</Prefix></CommonPrefixes>"
    "<NextContinuationToken>to+ken%2F</NextContinuationToken><EncodingType>url</EncodingType></"
    "ListBucketResult>";

static void listings(void **state) {
    (void)state;
    clt_s3_listing l = {0};
    assert_int_equal(clt_s3_xml_listing(list_text, strlen(list_text), &l), 0);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.objects[0].key, "a/with space+plus");
    assert_string_equal(l.objects[0].etag, "\"abc\"");
    assert_true(l.objects[0].bytes == 18446744073709u);
    assert_true(l.objects[0].modified == 1795798801.5);
    assert_string_equal(l.objects[1].key, "a/\xc3\xbc");
    assert_int_equal(l.prefixes.n, 1);
    assert_string_equal(l.prefixes.v[0], "a/sub/");
    assert_true(l.truncated);
    assert_string_equal(l.next, "to+ken%2F"); /* opaque */
    /* The last page, without encoding. */
    static const char last[] = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>b%2F+</Key>"
                               "<Size>1</Size></Contents></ListBucketResult>";
    assert_int_equal(clt_s3_xml_listing(last, strlen(last), &l), 0);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.objects[2].key, "b%2F+");
    assert_false(l.truncated);
    assert_null(l.next);
    clt_s3_listing_free(&l);
    assert_null(l.objects);
}

static void uploads(void **state) {
    (void)state;
    static const char text[] =
        HEAD "<ListMultipartUploadsResult" NAMESPACE "><Bucket>b</Bucket><NextKeyMarker>k%2F2</NextKeyMarker>"
             "<NextUploadIdMarker>u2</NextUploadIdMarker><EncodingType>url</EncodingType><IsTruncated>true</"
             "IsTruncated>"
             "<Upload><Key>k%2F1</Key><UploadId>u1</UploadId><Initiated>2026-11-27T00:00:00.000Z</"
             "Initiated></Upload>"
             "</ListMultipartUploadsResult>";
    clt_s3_listing l = {0};
    assert_int_equal(clt_s3_xml_listing(text, strlen(text), &l), 0);
    assert_string_equal(l.objects[0].key, "k/1");
    assert_string_equal(l.objects[0].upload_id, "u1");
    assert_string_equal(l.next, "k/2");
    assert_string_equal(l.next_upload, "u2");
    clt_s3_listing_free(&l);

    static const char begin[] = HEAD "<InitiateMultipartUploadResult" NAMESPACE
                                     "><Bucket>b</Bucket><Key>k</Key><UploadId>VXBsb2Fk</UploadId>"
                                     "</InitiateMultipartUploadResult>";
    char *id;
    assert_int_equal(clt_s3_xml_upload(begin, strlen(begin), &id), 0);
    assert_string_equal(id, "VXBsb2Fk");
    clt_free(id);
    static const char done[] =
        HEAD "<CompleteMultipartUploadResult" NAMESPACE
             "><ETag>\"3858f62230ac3c915f300c664312c11f-9\"</ETag></CompleteMultipartUploadResult>";
    clt_s3_error e;
    char *etag;
    assert_int_equal(clt_s3_xml_complete(done, strlen(done), &etag, &e), 0);
    assert_string_equal(etag, "\"3858f62230ac3c915f300c664312c11f-9\"");
    clt_free(etag);
    char *parts = clt_s3_xml_parts((const char *const[]){"\"a\"", "<&>"}, 2);
    assert_non_null(strstr(parts, "<Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part>"
                                  "<Part><PartNumber>2</PartNumber><ETag>&lt;&amp;&gt;</ETag></Part>"));
    clt_free(parts);
}

static void part_sizes(void **state) {
    (void)state;
    static const char page[] =
        HEAD "<ListPartsResult" NAMESPACE "><Key>k</Key><NextPartNumberMarker>2</NextPartNumberMarker>"
             "<IsTruncated>%s</IsTruncated><Part><PartNumber>1</PartNumber><Size>%s</Size></Part>"
             "<Part><PartNumber>2</PartNumber><Size>7</Size></Part><Size>1000</Size></ListPartsResult>";
    static const struct {
        const char *more, *size;
        uint64_t sum; /* 0: an error */
    } cases[] = {{"true", "5242880", 5242887},
                 {"false", "0", 7},
                 {"false", "9223372036854775807", 0},
                 {"false", "-1", 0},
                 {"false", "", 0}};
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        char *text = clt_format(page, cases[i].more, cases[i].size);
        clt_s3_part_sum sum = {0};
        assert_int_equal(clt_s3_xml_part_sum(text, strlen(text), &sum), cases[i].sum ? 0 : EBADMSG);
        if (cases[i].sum) {
            assert_int_equal(sum.bytes, cases[i].sum);
            assert_int_equal(sum.last, 2);
            assert_int_equal(sum.more, !strcmp(cases[i].more, "true"));
        }
        clt_free(text);
    }
    clt_s3_part_sum sum = {0};
    static const char other[] = HEAD "<ListBucketResult" NAMESPACE "></ListBucketResult>";
    assert_int_equal(clt_s3_xml_part_sum(other, strlen(other), &sum), EBADMSG);
}

static void errors(void **state) {
    (void)state;
    static const char text[] =
        HEAD "<Error><Code>RequestTimeTooSkewed</Code><Message>late\n\x7f</Message><RequestId>R1</RequestId>"
             "<Region>eu-west-1</Region><ServerTime>2026-11-27T00:00:10Z</ServerTime></Error>";
    clt_s3_error e = {0};
    char *etag;
    assert_true(clt_s3_xml_error(text, strlen(text), &e));
    assert_string_equal(e.code, "RequestTimeTooSkewed");
    assert_string_equal(e.message, "late??");
    assert_string_equal(e.request_id, "R1");
    assert_string_equal(e.region, "eu-west-1");
    assert_true(e.server_time == 1795737610);
    assert_int_equal(clt_s3_xml_complete(text, strlen(text), &etag, &e), EIO);
    assert_false(clt_s3_xml_error(list_text, strlen(list_text), &e));
    assert_false(clt_s3_xml_error("<html>", 6, &e));
}

static int listing_of(const char *text) {
    clt_s3_listing l = {0};
    const int e = clt_s3_xml_listing(text, strlen(text), &l);
    clt_s3_listing_free(&l);
    return e;
}

static void hostile(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "no XML",
        "<Other></Other>",
        "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>", /* no key */
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>99999999999999999999</Size></Contents></"
        "ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%2</Key></Contents></"
        "ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%00</Key></Contents></"
        "ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", /* the same page for ever */
        "<!DOCTYPE a [<!ENTITY x "
        "\"y\">]><ListBucketResult><Contents><Key>&x;</Key></Contents></ListBucketResult>",
        "<ListMultipartUploadsResult><Upload><Key>k</Key></Upload></ListMultipartUploadsResult>"};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++)
        if (listing_of(bad[i]) != EBADMSG) fail_msg("accepted: %s", bad[i]);
    /* Too deep, and a text that is too long. */
    clt_str deep = {0}, wide = {0};
    clt_str_add(&deep, "<ListBucketResult>");
    for (int i = 0; i < 20; i++) clt_str_add(&deep, "<a>");
    assert_int_equal(listing_of(deep.s), EBADMSG);
    clt_str_add(&wide, "<ListBucketResult><Contents><Key>");
    for (int i = 0; i < 9000; i++) clt_str_add(&wide, "k");
    clt_str_add(&wide, "</Key></Contents></ListBucketResult>");
    assert_int_equal(listing_of(wide.s), EBADMSG);
    clt_str_free(&deep);
    clt_str_free(&wide);
    /* Cut anywhere. */
    for (size_t n = 0; n + 1 < sizeof list_text - 1; n++) {
        char *cut = clt_strndup(list_text, n);
        assert_int_equal(listing_of(cut), EBADMSG);
        clt_free(cut);
    }
}

/* --- what stores wrote (test/golden/s3) --- */

static const char *const stores[] = {"seaweedfs", "moto"};

static char *golden(const char *store, const char *name, size_t *bytes) {
    char *path = clt_format("test/golden/s3/%s/%s.xml", store, name), *text;
    tu_assert_ok(clt_io_read_all(path, 1 << 20, &text, bytes), path);
    clt_free(path);
    return text;
}

static clt_s3_listing golden_listing(const char *store, const char *name) {
    size_t bytes;
    char *text = golden(store, name, &bytes);
    clt_s3_listing l = {0};
    assert_int_equal(clt_s3_xml_listing(text, bytes, &l), 0);
    clt_free(text);
    return l;
}

static clt_strv golden_keys(size_t n) {
    json_t *file = golden_load("test/golden/s3/keys.json");
    clt_strv keys = {0};
    for (size_t i = 0; i < CLT_MIN(n, json_array_size(file)); i++)
        clt_strv_add(&keys, json_string_value(json_array_get(file, i)));
    clt_strv_sort(&keys);
    json_decref(file);
    return keys;
}

static void whole_listing(const char *store, const char *name, const clt_strv *keys) {
    clt_s3_listing l = golden_listing(store, name);
    assert_int_equal(l.n, keys->n);
    for (size_t i = 0; i < l.n; i++) {
        assert_string_equal(l.objects[i].key, keys->v[i]);
        assert_int_equal(l.objects[i].bytes, strlen(keys->v[i]));
        assert_int_equal(strlen(l.objects[i].etag), 34);
        assert_true(l.objects[i].modified > 1795737600 && l.objects[i].modified < 1e10);
    }
    assert_false(l.truncated);
    clt_s3_listing_free(&l);
}

static void listings_of_stores(void **state) {
    (void)state;
    clt_strv keys = golden_keys(SIZE_MAX);
    for (size_t s = 0; s < CLT_COUNT_OF(stores); s++) {
        whole_listing(stores[s], "list", &keys);
        whole_listing(stores[s], "list_plain", &keys);
        clt_s3_listing l = golden_listing(stores[s], "list_folders");
        assert_int_equal(l.n, 6);
        assert_int_equal(l.prefixes.n, 2);
        assert_string_equal(l.prefixes.v[0], "a/sub/");
        assert_string_equal(l.prefixes.v[1], "a/\xc3\xbcn\xc3\xaf/");
        clt_s3_listing_free(&l);
        l = golden_listing(stores[s], "list_page");
        assert_int_equal(l.n, 2);
        assert_true(l.truncated);
        assert_non_null(l.next);
        clt_s3_listing_free(&l);
        l = golden_listing(stores[s], "list_empty");
        assert_int_equal(l.n + l.prefixes.n, 0);
        clt_s3_listing_free(&l);
    }
    clt_strv_free(&keys);
}

static void uploads_of_stores(void **state) {
    (void)state;
    clt_strv keys = golden_keys(4);
    for (size_t s = 0; s < CLT_COUNT_OF(stores); s++) {
        clt_s3_listing l = golden_listing(stores[s], "uploads");
        clt_strv found = {0};
        for (size_t i = 0; i < l.n; i++) {
            clt_strv_add(&found, l.objects[i].key);
            assert_true(strlen(l.objects[i].upload_id) > 10);
            assert_true(l.objects[i].modified > 0);
        }
        clt_strv_sort(&found); /* the stores' orders differ */
        assert_int_equal(found.n, keys.n);
        for (size_t i = 0; i < keys.n; i++) assert_string_equal(found.v[i], keys.v[i]);
        clt_strv_free(&found);
        clt_s3_listing_free(&l);
        size_t bytes;
        char *text = golden(stores[s], "begin", &bytes), *value;
        assert_int_equal(clt_s3_xml_upload(text, bytes, &value), 0);
        assert_true(strlen(value) > 10);
        clt_free(value);
        clt_free(text);
        clt_s3_error e;
        text = golden(stores[s], "complete", &bytes);
        assert_int_equal(clt_s3_xml_complete(text, bytes, &value, &e), 0);
        assert_string_equal(value, "\"9affad555af89da9b0bfcd5e45bc93da-1\"");
        clt_free(value);
        clt_free(text);
    }
    clt_strv_free(&keys);
}

static void errors_of_stores(void **state) {
    (void)state;
    static const struct {
        const char *store, *name, *code;
    } all[] = {{"seaweedfs", "no_key", "NoSuchKey"},       {"moto", "no_key", "NoSuchKey"},
               {"seaweedfs", "no_bucket", "NoSuchBucket"}, {"moto", "no_bucket", "NoSuchBucket"},
               {"seaweedfs", "no_upload", "NoSuchUpload"}, {"moto", "no_upload", NULL}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        size_t bytes;
        clt_s3_error e = {{0}};
        char *text = golden(all[i].store, all[i].name, &bytes), *value;
        assert_int_equal(clt_s3_xml_error(text, bytes, &e), all[i].code != NULL);
        assert_string_equal(e.code, all[i].code ? all[i].code : "");
        assert_int_equal(clt_s3_xml_complete(text, bytes, &value, &e), all[i].code ? EIO : EBADMSG);
        if (all[i].code) assert_true(*e.message && *e.request_id);
        clt_free(text);
    }
}

/* Cut anywhere before the last tag ends. */
static void cut_responses_of_stores(void **state) {
    (void)state;
    static const char *const names[] = {"list",  "list_folders", "list_page", "uploads",
                                        "begin", "complete",     "no_key"};
    for (size_t i = 0; i < CLT_COUNT_OF(stores) * CLT_COUNT_OF(names); i++) {
        size_t bytes;
        char *text = golden(stores[i % 2], names[i / 2], &bytes), *value;
        while (bytes && text[bytes - 1] != '>') bytes--;
        for (size_t n = 0; n < bytes; n++) {
            char *cut = clt_memdup(text, n); /* of the exact size, for a sanitizer */
            clt_s3_listing l = {0};
            clt_s3_error e;
            assert_int_equal(clt_s3_xml_listing(cut, n, &l), EBADMSG);
            assert_false(clt_s3_xml_error(cut, n, &e));
            assert_int_equal(clt_s3_xml_upload(cut, n, &value), EBADMSG);
            assert_int_equal(clt_s3_xml_complete(cut, n, &value, &e), EBADMSG);
            clt_s3_listing_free(&l);
            clt_free(cut);
        }
        clt_free(text);
    }
}

/* --- more that is hostile --- */

/* Entities that grow tenfold in each of nine steps, and entities that name a file. */
static void entities(void **state) {
    (void)state;
    static const char *const bad[] = {
        "<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><Error><Code>x</Code></Error>",
        "<!DOCTYPE a [<!ENTITY f SYSTEM \"file:///etc/passwd\">]><Error><Code>&f;</Code></Error>",
        "<!DOCTYPE a [<!ENTITY % p SYSTEM \"file:///etc/passwd\">%p;]><Error><Code>x</Code></Error>",
        "<Error><Code>&unknown;</Code></Error>"};
    clt_str laughs = {0};
    clt_str_add(&laughs, "<?xml version=\"1.0\"?><!DOCTYPE l [<!ENTITY e0 \"ha\">");
    for (int i = 1; i < 10; i++) {
        clt_str_addf(&laughs, "<!ENTITY e%d \"", i);
        for (int k = 0; k < 10; k++) clt_str_addf(&laughs, "&e%d;", i - 1);
        clt_str_add(&laughs, "\">");
    }
    clt_str_add(&laughs, "]><Error><Code>&e9;</Code></Error>");
    clt_s3_error e;
    const double before = clt_now();
    assert_false(clt_s3_xml_error(laughs.s, laughs.len, &e));
    assert_int_equal(listing_of(laughs.s), EBADMSG);
    assert_true(clt_now() - before < 1);
    clt_str_free(&laughs);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) assert_false(clt_s3_xml_error(bad[i], strlen(bad[i]), &e));
}

/* The characters that control a terminal, of which some are two bytes of UTF-8. */
static void messages_are_printable(void **state) {
    (void)state;
    static const char text[] =
        "<Error><Code>A</Code><Message>a&#9;b\xc2\x9b[2J\xc2\xa0\xc3\xbc</Message></Error>";
    clt_s3_error e;
    assert_true(clt_s3_xml_error(text, strlen(text), &e));
    assert_string_equal(e.message, "a?b??[2J\xc2\xa0\xc3\xbc");
}

/* Many objects over several pages, as the list of a large bucket is made. */
static void many_objects(void **state) {
    (void)state;
    clt_s3_listing l = {0};
    for (int page = 0; page < 5; page++) {
        clt_str b = {0};
        clt_str_add(&b, "<ListBucketResult>");
        for (int i = 0; i < 1000; i++)
            clt_str_addf(&b, "<Contents><Key>%d</Key><Size>%d</Size></Contents>", page * 1000 + i, i);
        clt_str_add(&b, "</ListBucketResult>");
        assert_int_equal(clt_s3_xml_listing(b.s, b.len, &l), 0);
        clt_str_free(&b);
    }
    assert_int_equal(l.n, 5000);
    for (size_t i = 0; i < l.n; i++) {
        assert_int_equal(atoi(l.objects[i].key), (int)i);
        assert_int_equal(l.objects[i].bytes, i % 1000);
    }
    clt_s3_listing_free(&l);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    static const struct CMUnitTest tests[] = {cmocka_unit_test(listings),
                                              cmocka_unit_test(uploads),
                                              cmocka_unit_test(part_sizes),
                                              cmocka_unit_test(errors),
                                              cmocka_unit_test(hostile),
                                              cmocka_unit_test(listings_of_stores),
                                              cmocka_unit_test(uploads_of_stores),
                                              cmocka_unit_test(errors_of_stores),
                                              cmocka_unit_test(cut_responses_of_stores),
                                              cmocka_unit_test(entities),
                                              cmocka_unit_test(messages_are_printable),
                                              cmocka_unit_test(many_objects)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
