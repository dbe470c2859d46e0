/* Responses of stores: as Amazon documents them and SeaweedFS and moto write them, and hostile ones. */
#include <errno.h>
#include <string.h>

#include "runtime/object/clt_s3_xml.h"
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

int main(int argc, char **argv) {
    tu_init(argc, argv);
    static const struct CMUnitTest tests[] = {cmocka_unit_test(listings), cmocka_unit_test(uploads),
                                              cmocka_unit_test(errors), cmocka_unit_test(hostile)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
