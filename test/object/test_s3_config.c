/* Where endpoint, region and credentials come from, what is refused, and that no secret is shown. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_context.h"
#include "runtime/base/clt_io.h"
#include "runtime/object/clt_s3_config.h"
#include "runtime/object/clt_s3_sources.h"
#include "test/fake_server.h"
#include "test/test_util.h"

static char *folder;
#define ENV_SECRET "secret-of-the-environment-0123456789"
#define FILE_SECRET "secret-of-the-file-0123456789"

static const char *const variables[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",
                                        "AWS_REGION",
                                        "AWS_DEFAULT_REGION",
                                        "AWS_ENDPOINT_URL_S3",
                                        "AWS_ENDPOINT_URL",
                                        "S3_ENDPOINT_URL",
                                        "AWS_SHARED_CREDENTIALS_FILE",
                                        "AWS_CONFIG_FILE",
                                        "CLTRAIN_S3_STYLE",
                                        "CLTRAIN_S3_INSECURE",
                                        "CLTRAIN_S3_METADATA",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                                        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                                        "AWS_EC2_METADATA_DISABLED",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE"};

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

/* The end of a program that nobody waits for would be seen here. */
static void within(const char *command, double seconds, clt_status want, const char *message) {
    clt_s3_credentials c = {0};
    const double before = clt_now();
    assert_int_equal(clt_s3_from_process(command, seconds, &c), want);
    assert_true(clt_now() - before < 5);
    assert_null(c.access_key);
    if (message && !strstr(clt_last_error(), message))
        fail_msg("'%s' does not contain '%s'", clt_last_error(), message);
    assert_null(strstr(clt_last_error(), FILE_SECRET));
}

#define KEYS "\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"" FILE_SECRET "\""

static void processes_that_misbehave(void **state) {
    (void)state;
    within("sleep 30", 0.3, CLT_BAD_CONFIG, "within 0.3 s");
    within("exec >&-; sleep 30", 0.3, CLT_BAD_CONFIG, "within 0.3 s"); /* its output ends before it does */
    within("yes " FILE_SECRET, 20, CLT_BAD_CONFIG, "64 KiB");
    within("kill -9 $$", 20, CLT_BAD_CONFIG, "signal 9");
    within("echo '{\"Version\": 2, " KEYS "}'", 20, CLT_BAD_CONFIG, "Version");
    within("echo '{" KEYS "}'", 20, CLT_BAD_CONFIG, "Version");
    within("echo '{\"Version\": 1, " KEYS ", \"Expiration\": 12}'", 20, CLT_BAD_CONFIG, "Expiration");
    within("echo '{\"Version\": 1, " KEYS ", \"Expiration\": \"soon\"}'", 20, CLT_BAD_CONFIG, "Expiration");
    within("echo '{\"Version\": 1, " KEYS "'", 20, CLT_BAD_CONFIG, "no JSON");
    within("echo '[1]'", 20, CLT_BAD_CONFIG, "no JSON");
}

/* Signals of a run are blocked and ignored; those of the program must not be. */
static void processes_have_usual_signals(void **state) {
    (void)state;
    clt_s3_credentials c = {0};
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    void (*pipe)(int) = signal(SIGPIPE, SIG_IGN);
    /* Bit 12 of what is ignored is SIGPIPE; the test itself may ignore others. */
    tu_assert_ok(clt_s3_from_process("grep -qx 'SigBlk:.0*' /proc/self/status && grep -qx "
                                     "'SigIgn:.............[02468ace]...' /proc/self/status && "
                                     "echo '{\"Version\": 1, " KEYS "}'",
                                     20, &c),
                 "process");
    signal(SIGPIPE, pipe);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_string_equal(c.secret_key, FILE_SECRET);
    clt_s3_credentials_free(&c);
    assert_null(c.secret_key);
}

/* What a program says on its standard error reaches nobody. */
static void processes_are_quiet(void **state) {
    (void)state;
    char *path = clt_path_join(folder, "stderr"), *text;
    fflush(stderr);
    const int kept = dup(2);
    assert_non_null(freopen(path, "w", stderr));
    clt_s3_credentials c = {0};
    clt_error_quiet(true);
    assert_int_equal(clt_s3_from_process("echo " FILE_SECRET " >&2; exit 4", 20, &c), CLT_BAD_CONFIG);
    clt_error_quiet(false);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    tu_assert_ok(clt_io_read_all(path, 1 << 16, &text, NULL), path);
    assert_string_equal(text, "");
    clt_free(text);
    clt_free(path);
}

static void a_request_to_stop_ends_the_wait(void **state) {
    (void)state;
    const clt_context_params p = {.level = CLT_LOG_ERROR};
    clt_context *c = clt_context_create(&p), *before = clt_context_enter(c);
    const bool heeded = clt_io_heed_stop(true);
    clt_context_ask_stop(c, SIGTERM);
    within("sleep 30", 20, CLT_STOPPED, NULL);
    clt_io_heed_stop(heeded);
    clt_context_enter(before);
    clt_context_destroy(c);
}

static void refresh_keeps_what_is_gone(void **state) {
    (void)state;
    write_file(".aws/credentials", "[default]\naws_access_key_id=A1\naws_secret_access_key=S1\n");
    clt_s3_config c = read_config();
    write_file(".aws/credentials", "");
    assert_int_equal(clt_s3_config_refresh(&c), CLT_BAD_CONFIG);
    assert_string_equal(c.credentials.secret_key, "S1");
    write_file(".aws/credentials", "[default]\naws_access_key_id=A2\naws_secret_access_key=S2\n");
    tu_assert_ok(clt_s3_config_refresh(&c), "refresh");
    assert_string_equal(c.credentials.secret_key, "S2");
    clt_s3_config_free(&c);
}

/* What only the AWS tools can do is an error and never an unsigned request, or one of another identity. */
static void logins_and_roles(void **state) {
    (void)state;
    write_file(".aws/credentials", "[default]\naws_access_key_id=A1\naws_secret_access_key=" FILE_SECRET "\n"
                                   "[role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n");
    write_file(".aws/config", "[profile sso]\nregion = eu-west-1\nsso_session = corp\nsso_account_id = 1\n"
                              "[profile old]\nsso_start_url = https://corp.example/start\n"
                              "[profile chained]\naws_access_key_id=A2\naws_secret_access_key=" FILE_SECRET
                              "\nRole_Arn = arn:aws:iam::1:role/y\ncredential_source = Environment\n"
                              "[sso-session corp]\nsso_start_url = https://corp.example/start\n");
    clt_s3_config c = read_config(); /* other profiles and the session do not matter */
    assert_string_equal(c.credentials.access_key, "A1");
    clt_s3_config_free(&c);
    setenv("AWS_PROFILE", "sso", 1);
    refused("/.aws/config:3: sso_session of profile sso: ");
    refused("credential_process = aws configure export-credentials --profile sso --format process");
    setenv("AWS_PROFILE", "old", 1);
    refused("/.aws/config:6: sso_start_url of profile old");
    setenv("AWS_PROFILE", "role", 1);
    refused("/.aws/credentials:5: role_arn of profile role");
    setenv("AWS_PROFILE", "chained", 1);
    refused("/.aws/config:10: Role_Arn of profile chained");
    environment_keys(); /* the source that the AWS tools prefer, too */
    c = read_config();
    assert_string_equal(c.credentials.secret_key, ENV_SECRET);
    clt_s3_config_free(&c);
}

static void web_identity(void **state) {
    (void)state;
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token", 1);
    refused("AWS_WEB_IDENTITY_TOKEN_FILE is set");
    environment_keys();
    clt_s3_config c = read_config();
    clt_s3_config_free(&c);
}

/* --- metadata of a container --- */

#define OK(body) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" body

static void metadata_of_a_container(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = OK("{\"AccessKeyId\": \"AC\", \"SecretAccessKey\": \"" FILE_SECRET "\", \"Token\": \"TC\", "
                     "\"Expiration\": \"2030-01-31T14:00:00+02:00\"}"),
         .ends = true},
        {.reply = OK("{\"AccessKeyId\": \"" FILE_SECRET "\"}"), .ends = true},
        {.reply = "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"}};
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", fake_url(s), 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", ENV_SECRET, 1);
    clt_s3_config c = read_config();
    assert_null(c.credentials.access_key); /* not asked for */
    assert_int_equal(fake_requests(s), 0);
    clt_s3_config_free(&c);
    setenv("CLTRAIN_S3_METADATA", "1", 1);
    c = read_config();
    assert_string_equal(c.credentials.secret_key, FILE_SECRET);
    assert_string_equal(c.credentials.session_token, "TC");
    assert_true(c.credentials.expires == 1896091200.0);
    assert_non_null(strstr(fake_request(s, 0), "uthorization: " ENV_SECRET "\r\n"));
    char *text = clt_s3_config_describe(&c);
    assert_null(strstr(text, "SECRET"));
    assert_null(strstr(text, FILE_SECRET));
    assert_non_null(strstr(text, "container"));
    clt_free(text);
    clt_s3_config_free(&c);
    refused("SecretAccessKey");
    refused("gave no credentials");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", ENV_SECRET "\r\nx-more: 1", 1);
    refused("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    /* The token would go to other hosts unencrypted. */
    static const char *const places[] = {
        "http://metadata.example/",      "http://127.example/", "http://127.0.0.1@store.example/",
        "http://169.254.170.2.example/", "ftp://127.0.0.1/",    "http://127.0.0.1/\n"};
    for (size_t i = 0; i < CLT_COUNT_OF(places); i++) {
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", places[i], 1);
        refused("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    }
    unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "@127.0.0.1/x", 1);
    refused("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    assert_int_equal(fake_requests(s), 3);
    fake_stop(s);
}

/* Kubernetes gives the token in a file and replaces it. */
static void token_in_a_file(void **state) {
    (void)state;
    const fake_step steps[] = {{.reply = OK("{" KEYS "}"), .ends = true},
                               {.reply = "HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\n", .ends = true},
                               {.reply = OK("{" KEYS "}"), .ends = true}};
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    char *path = clt_path_join(folder, "token");
    setenv("CLTRAIN_S3_METADATA", "1", 1);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", fake_url(s), 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "unused", 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", path, 1);
    write_file("token", "token-1\n");
    clt_s3_config c = read_config();
    write_file("token", "token-2");
    tu_assert_ok(clt_s3_config_refresh(&c), "refresh"); /* the second attempt brings them */
    clt_s3_config_free(&c);
    assert_non_null(strstr(fake_request(s, 0), "uthorization: token-1\r\n"));
    assert_non_null(strstr(fake_request(s, 2), "uthorization: token-2\r\n"));
    write_file("token", "token\r\nx-more: 1");
    refused("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE has");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", folder, 1);
    assert_int_equal(clt_s3_config_read(&c), CLT_IO);
    assert_int_equal(fake_requests(s), 3);
    fake_stop(s);
    clt_free(path);
}

/* --- metadata of an instance --- */

#define STATUS(text) "HTTP/1.1 " text "\r\nContent-Length: 0\r\n\r\n"

static void metadata_of_an_instance(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = OK("token-of-the-service"), .ends = true},
        {.reply = STATUS("500 Oops")},
        {.reply = OK("the role\n"), .ends = true},
        {.reply = OK("{\"Code\": \"Success\", " KEYS ", \"Token\": \"TI\", "
                     "\"Expiration\": \"2030-01-31T12:00:00Z\"}"),
         .ends = true},
        {.reply = OK("token-of-the-service"), .ends = true}, /* an instance without a role */
        {.reply = STATUS("404 Not Found")},
        {.reply = OK("token-of-the-service"), .ends = true},
        {.reply = OK("the role"), .ends = true},
        {.reply = STATUS("403 Forbidden")},
        {.reply = STATUS("403 Forbidden")}, /* the service is switched off */
    };
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    char *url = clt_format("%s/", fake_url(s));
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url, 1);
    clt_s3_config c = read_config(); /* not asked for */
    clt_s3_config_free(&c);
    setenv("CLTRAIN_S3_METADATA", "1", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    c = read_config();
    assert_int_equal(fake_requests(s), 0);
    clt_s3_config_free(&c);
    unsetenv("AWS_EC2_METADATA_DISABLED");
    c = read_config();
    assert_string_equal(c.credentials.secret_key, FILE_SECRET);
    assert_string_equal(c.credentials.session_token, "TI");
    assert_true(c.credentials.expires == 1896091200.0);
    clt_s3_config_free(&c);
    assert_non_null(strstr(fake_request(s, 0), "PUT /latest/api/token HTTP/1.1"));
    assert_non_null(strstr(fake_request(s, 0), "x-aws-ec2-metadata-token-ttl-seconds: 300\r\n"));
    assert_non_null(
        strstr(fake_request(s, 3), "GET /latest/meta-data/iam/security-credentials/the%20role HTTP"));
    for (size_t i = 1; i < 4; i++)
        assert_non_null(strstr(fake_request(s, i), "x-aws-ec2-metadata-token: token-of-the-service\r\n"));
    c = read_config();
    assert_null(c.credentials.access_key);
    refused("the instance's metadata service gave no credentials (status 403)");
    c = read_config();
    assert_null(c.credentials.access_key);
    assert_int_equal(fake_requests(s), CLT_COUNT_OF(steps));
    static const char *const places[] = {"http://169.254.169.254.example/", "http://metadata.example",
                                         "http://127.0.0.1@metadata.example", "ftp://127.0.0.1"};
    for (size_t i = 0; i < CLT_COUNT_OF(places); i++) {
        setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", places[i], 1);
        refused("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    }
    fake_stop(s);
    clt_free(url);
}

static void what_is_refused(void **state) {
    (void)state;
    setenv("AWS_SECRET_ACCESS_KEY", ENV_SECRET, 1);
    refused("AWS_ACCESS_KEY_ID is not");
    environment_keys();
    static const char *const endpoints[] = {"store.example",
                                            "ftp://store.example",
                                            "https://",
                                            "https://a/b",
                                            "https://user:" ENV_SECRET "@host",
                                            "https://:80",
                                            "https://h:0",
                                            "https://h:65536",
                                            "https://h:1x",
                                            "https://[::1",
                                            "https://[x]:1",
                                            "https://h\ni"};
    for (size_t i = 0; i < CLT_COUNT_OF(endpoints); i++) {
        setenv("AWS_ENDPOINT_URL", endpoints[i], 1);
        refused("AWS_ENDPOINT_URL");
    }
    setenv("AWS_ENDPOINT_URL", "http://store.example:9000", 1);
    refused("CLTRAIN_S3_INSECURE=store.example");
    /* Names that begin like an address of this machine. */
    setenv("AWS_ENDPOINT_URL", "http://127.store.example", 1);
    refused("CLTRAIN_S3_INSECURE");
    setenv("AWS_ENDPOINT_URL", "http://localhost.store.example", 1);
    refused("CLTRAIN_S3_INSECURE");
    setenv("AWS_ENDPOINT_URL", "http://store.example:9000", 1);
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

/* A line end in a key would end the header that it is sent in. */
static void keys_are_printable(void **state) {
    (void)state;
    static const char *const names[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"};
    static const char *const bad[] = {ENV_SECRET "\r", ENV_SECRET "\nx-more: 1", ENV_SECRET " b", "\xc3\xbc"};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        for (size_t k = 0; k < CLT_COUNT_OF(bad); k++) {
            environment_keys();
            unsetenv("AWS_SESSION_TOKEN");
            setenv(names[i], bad[k], 1);
            refused("from the environment");
        }
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    write_file("keys.json", "{\"Version\": 1, " KEYS ", \"SessionToken\": \"a\\r\\nb: c\"}");
    write_file(".aws/config", "[default]\ncredential_process = cat \"$HOME/keys.json\"\n");
    refused("session token");
    setenv("AWS_CONFIG_FILE", "s3://bucket/config", 1);
    refused("local");
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
    refused("credentials:2: profile default has only one of");
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    folder = clt_format("/tmp/test_s3_config.%ld", (long)getpid());
    static const struct CMUnitTest tests[] = {cmocka_unit_test_setup(nothing_is_set, fresh),
                                              cmocka_unit_test_setup(environment_wins, fresh),
                                              cmocka_unit_test_setup(files_and_profiles, fresh),
                                              cmocka_unit_test_setup(processes, fresh),
                                              cmocka_unit_test_setup(processes_that_misbehave, fresh),
                                              cmocka_unit_test_setup(processes_have_usual_signals, fresh),
                                              cmocka_unit_test_setup(processes_are_quiet, fresh),
                                              cmocka_unit_test_setup(a_request_to_stop_ends_the_wait, fresh),
                                              cmocka_unit_test_setup(refresh_keeps_what_is_gone, fresh),
                                              cmocka_unit_test_setup(logins_and_roles, fresh),
                                              cmocka_unit_test_setup(web_identity, fresh),
                                              cmocka_unit_test_setup(metadata_of_a_container, fresh),
                                              cmocka_unit_test_setup(token_in_a_file, fresh),
                                              cmocka_unit_test_setup(metadata_of_an_instance, fresh),
                                              cmocka_unit_test_setup(what_is_refused, fresh),
                                              cmocka_unit_test_setup(keys_are_printable, fresh),
                                              cmocka_unit_test_setup(malformed_files, fresh)};
    const int failed = tu_run(tests, CLT_COUNT_OF(tests));
    clt_io_remove_tree(folder);
    clt_free(folder);
    return failed;
}
