/* Where endpoint, region and credentials come from, what is refused, and that no secret is shown. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/object/clt_s3_config.h"
#include "test/test_util.h"

static char *folder;
#define ENV_SECRET "secret-of-the-environment-0123456789"
#define FILE_SECRET "secret-of-the-file-0123456789"

static const char *const variables[] = {
    "AWS_ACCESS_KEY_ID",   "AWS_SECRET_ACCESS_KEY",       "AWS_SESSION_TOKEN",   "AWS_PROFILE",
    "AWS_REGION",          "AWS_DEFAULT_REGION",          "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL",
    "S3_ENDPOINT_URL",     "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE",     "CLTRAIN_S3_STYLE",
    "CLTRAIN_S3_INSECURE", "CLTRAIN_S3_METADATA"};

static void write_file(const char *name, const char *text) {
    char *path = clt_path_join(folder, name);
    tu_assert_ok(clt_io_write_atomic(path, text, strlen(text)), path);
    clt_free(path);
}

/* Nothing set, a home without files. */
static int fresh(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(variables); i++) unsetenv(variables[i]);
    tu_assert_ok(clt_io_remove_tree(folder), folder);
    char *aws = clt_path_join(folder, ".aws");
    tu_assert_ok(clt_io_mkdirs(aws), aws);
    clt_free(aws);
    setenv("HOME", folder, 1);
    return 0;
}

static clt_s3_config read_config(void) {
    clt_s3_config c;
    tu_assert_ok(clt_s3_config_read(&c), "clt_s3_config_read");
    return c;
}

/* The last message holds `want` and no secret. */
static void refused(const char *want) {
    clt_s3_config c;
    assert_int_equal(clt_s3_config_read(&c), CLT_BAD_CONFIG);
    const char *said = clt_last_error();
    if (!strstr(said, want)) fail_msg("'%s' does not contain '%s'", said, want);
    assert_null(strstr(said, ENV_SECRET));
    assert_null(strstr(said, FILE_SECRET));
}

static void environment_keys(void) {
    setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT0WXYZ", 1);
    setenv("AWS_SECRET_ACCESS_KEY", ENV_SECRET, 1);
}

static void nothing_is_set(void **state) {
    (void)state;
    clt_s3_config c = read_config();
    assert_string_equal(c.endpoint, "https://s3.us-east-1.amazonaws.com");
    assert_string_equal(c.region, "us-east-1");
    assert_false(c.path_style);
    assert_null(c.credentials.access_key);
    assert_true(isinf(c.credentials.expires));
    char *text = clt_s3_config_describe(&c);
    assert_string_equal(text,
                        "https://s3.us-east-1.amazonaws.com, region us-east-1, virtual-host style, without "
                        "credentials");
    clt_free(text);
    clt_s3_config_free(&c);
}

static void environment_wins(void **state) {
    (void)state;
    write_file(".aws/credentials",
               "[default]\naws_access_key_id = FILE\naws_secret_access_key = " FILE_SECRET "\n");
    environment_keys();
    setenv("AWS_SESSION_TOKEN", "token", 1);
    setenv("AWS_REGION", "eu-west-3", 1);
    setenv("AWS_DEFAULT_REGION", "eu-west-1", 1);
    setenv("S3_ENDPOINT_URL", "https://third.example", 1);
    setenv("AWS_ENDPOINT_URL", "https://second.example:9000/", 1);
    clt_s3_config c = read_config();
    assert_string_equal(c.endpoint, "https://second.example:9000");
    assert_string_equal(c.region, "eu-west-3");
    assert_true(c.path_style);
    assert_string_equal(c.credentials.secret_key, ENV_SECRET);
    assert_string_equal(c.credentials.session_token, "token");
    char *text = clt_s3_config_describe(&c);
    assert_string_equal(text,
                        "https://second.example:9000, region eu-west-3, path style, credentials from the "
                        "environment (AKIA...WXYZ)");
    clt_free(text);
    clt_s3_config_free(&c);
    setenv("AWS_ENDPOINT_URL_S3", "https://first.example", 1);
    setenv("CLTRAIN_S3_STYLE", "virtual", 1);
    c = read_config();
    assert_string_equal(c.endpoint, "https://first.example");
    assert_false(c.path_style);
    clt_s3_config_free(&c);
}

static void files_and_profiles(void **state) {
    (void)state;
    write_file(".aws/credentials", "# keys\n[default]\naws_access_key_id=A1\naws_secret_access_key=S1\n\n"
                                   "[other]\r\naws_access_key_id = A2 \r\naws_secret_access_key = S2=+/\r\n"
                                   "aws_session_token = T2\r\n");
    write_file(".aws/config", "[default]\nregion = us-west-2\ns3 =\n    addressing_style = path\n"
                              "[profile other]\nregion = eu-north-1\nendpoint_url = https://store.example\n"
                              "[profile third]\naws_access_key_id = A3\naws_secret_access_key = S3\n");
    clt_s3_config c = read_config();
    assert_string_equal(c.credentials.access_key, "A1");
    assert_string_equal(c.region, "us-west-2");
    clt_s3_config_free(&c);
    setenv("AWS_PROFILE", "other", 1);
    c = read_config();
    assert_string_equal(c.credentials.secret_key, "S2=+/");
    assert_string_equal(c.credentials.session_token, "T2");
    assert_string_equal(c.region, "eu-north-1");
    assert_string_equal(c.endpoint, "https://store.example");
    clt_s3_config_free(&c);
    setenv("AWS_PROFILE", "third", 1);
    c = read_config();
    assert_string_equal(c.credentials.access_key, "A3");
    clt_s3_config_free(&c);
    setenv("AWS_PROFILE", "missing", 1);
    refused("no profile missing");
}

static void processes(void **state) {
    (void)state;
    write_file("keys.json",
               "{\"Version\": 1, \"AccessKeyId\": \"AP\", \"SecretAccessKey\": \"SP\", \"SessionToken\": "
               "\"TP\", \"Expiration\": \"2030-01-31T12:00:00Z\"}");
    write_file(".aws/config",
               "[default]\ncredential_process = cat \"$HOME/keys.json\"\n"
               "[profile bad]\ncredential_process = echo '" FILE_SECRET "'; exit 3\n"
               "[profile half]\ncredential_process = echo '{\"AccessKeyId\": \"" FILE_SECRET "\"}'\n");
    clt_s3_config c = read_config();
    assert_string_equal(c.credentials.secret_key, "SP");
    assert_string_equal(c.credentials.session_token, "TP");
    assert_true(c.credentials.expires == 1896091200.0);
    /* A newer pair. */
    write_file("keys.json", "{\"Version\": 1, \"AccessKeyId\": \"AN\", \"SecretAccessKey\": \"SN\"}");
    tu_assert_ok(clt_s3_config_refresh(&c), "refresh");
    assert_string_equal(c.credentials.access_key, "AN");
    assert_null(c.credentials.session_token);
    write_file("keys.json", "nothing");
    assert_int_equal(clt_s3_config_refresh(&c), CLT_BAD_CONFIG);
    assert_string_equal(c.credentials.access_key, "AN"); /* the old ones stay */
    clt_s3_config_free(&c);
    setenv("AWS_PROFILE", "bad", 1);
    refused("code 3");
    setenv("AWS_PROFILE", "half", 1);
    refused("SecretAccessKey");
}

static void what_is_refused(void **state) {
    (void)state;
    setenv("AWS_SECRET_ACCESS_KEY", ENV_SECRET, 1);
    refused("AWS_ACCESS_KEY_ID is not");
    environment_keys();
    static const char *const endpoints[] = {"store.example", "ftp://store.example",    "https://",
                                            "https://a/b",   "https://user:word@host", "https://:80"};
    for (size_t i = 0; i < CLT_COUNT_OF(endpoints); i++) {
        setenv("AWS_ENDPOINT_URL", endpoints[i], 1);
        refused("AWS_ENDPOINT_URL");
    }
    setenv("AWS_ENDPOINT_URL", "http://store.example:9000", 1);
    refused("CLTRAIN_S3_INSECURE=store.example");
    setenv("CLTRAIN_S3_INSECURE", "a,store.example", 1);
    clt_s3_config c = read_config();
    clt_s3_config_free(&c);
    static const char *const loopback[] = {"http://127.0.0.1:1", "http://localhost", "http://[::1]:9000"};
    for (size_t i = 0; i < CLT_COUNT_OF(loopback); i++) {
        setenv("AWS_ENDPOINT_URL", loopback[i], 1);
        c = read_config();
        clt_s3_config_free(&c);
    }
    setenv("CLTRAIN_S3_STYLE", "both", 1);
    refused("CLTRAIN_S3_STYLE");
    unsetenv("CLTRAIN_S3_STYLE");
    setenv("AWS_REGION", "eu/west", 1);
    refused("eu/west");
}

static void malformed_files(void **state) {
    (void)state;
    write_file(".aws/credentials", "[default]\naws_access_key_id = A\n" FILE_SECRET "\n");
    refused("credentials:3");
    write_file(".aws/credentials", "[default\n");
    refused("credentials:1");
    write_file(".aws/credentials", "[default]\n = x\n");
    refused("credentials:2");
    write_file(".aws/credentials", "[default]\naws_secret_access_key = " FILE_SECRET "\n");
    refused("only one of");
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    folder = clt_format("/tmp/test_s3_config.%ld", (long)getpid());
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_is_set, fresh),     cmocka_unit_test_setup(environment_wins, fresh),
        cmocka_unit_test_setup(files_and_profiles, fresh), cmocka_unit_test_setup(processes, fresh),
        cmocka_unit_test_setup(what_is_refused, fresh),    cmocka_unit_test_setup(malformed_files, fresh)};
    const int failed = tu_run(tests, CLT_COUNT_OF(tests));
    clt_io_remove_tree(folder);
    clt_free(folder);
    return failed;
}
