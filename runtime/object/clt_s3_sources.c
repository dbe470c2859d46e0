#include "runtime/object/clt_s3_sources.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_json.h"
#include "runtime/object/clt_http.h"

enum { MAX_OUTPUT = 64 << 10 };
static const double process_seconds = 60;

extern char **environ;

/* --- the JSON of all sources --- */

static const char *text_of(json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

/* 0: not a time. */
static double expiry_of(const char *text) {
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest) return 0;
    if (*rest == '.') rest += 1 + strspn(rest + 1, "0123456789");
    double zone = 0;
    int hours = 0, minutes = 0;
    if (*rest == '+' || *rest == '-') {
        if (sscanf(rest + 1, "%2d:%2d", &hours, &minutes) != 2) return 0;
        zone = (*rest == '+' ? 1 : -1) * (hours * 3600.0 + minutes * 60.0);
    } else if (strcmp(rest, "Z") != 0) {
        return 0;
    }
    return (double)timegm(&tm) - zone;
}

/* `token`: the name of the session token. Nothing of the text is shown. */
static clt_status read_json(const char *text, size_t bytes, const char *source, const char *token,
                            clt_s3_credentials *out) {
    json_error_t error;
    json_t *o = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    const char *access = text_of(o, "AccessKeyId"), *secret = text_of(o, "SecretAccessKey"),
               *session = text_of(o, token);
    const char *expires = text_of(o, "Expiration");
    const double end = expires ? expiry_of(expires) : INFINITY;
    clt_status st = CLT_OK;
    if (!access || !secret || !*access || !*secret)
        st = clt_error(CLT_BAD_CONFIG, "%s gave no JSON with AccessKeyId and SecretAccessKey", source);
    else if (end == 0)
        st =
            clt_error(CLT_BAD_CONFIG, "%s gave an Expiration that is no time (2030-01-31T12:00:00Z)", source);
    else
        *out = (clt_s3_credentials){clt_strdup(access), clt_strdup(secret),
                                    session ? clt_strdup(session) : NULL, end, clt_strdup(source)};
    json_decref(o);
    return st;
}

/* --- a program --- */

/* Reads what the child writes until it closes its end, for at most process_seconds. */
static int read_output(int fd, char *to, size_t cap, size_t *n) {
    const double end = clt_now() + process_seconds;
    *n = 0;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const double left = end - clt_now();
        if (left <= 0) return ETIMEDOUT;
        if (poll(&p, 1, (int)(left * 1000) + 1) < 0 && errno != EINTR) return errno;
        if (!p.revents) continue;
        if (*n == cap) return EMSGSIZE;
        const ssize_t got = read(fd, to + *n, cap - *n);
        if (got < 0 && errno != EINTR) return errno;
        if (got == 0) return 0;
        if (got > 0) *n += (size_t)got;
    }
}

static int start(const char *command, int write_end, pid_t *pid) {
    char *argv[] = {"/bin/sh", "-c", (char *)command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, write_end, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawnattr_init(&attributes);
    /* A group of its own, so that what the shell started can be ended with it. */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int e = posix_spawn(pid, argv[0], &files, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return e;
}

clt_status clt_s3_from_process(const char *command, clt_s3_credentials *out) {
    char *text = clt_malloc(MAX_OUTPUT);
    size_t n = 0;
    int ends[2], status = 0, e = pipe2(ends, O_CLOEXEC) ? errno : 0;
    pid_t pid;
    if (!e) {
        e = start(command, ends[1], &pid);
        close(ends[1]);
        if (!e) {
            e = read_output(ends[0], text, MAX_OUTPUT, &n);
            if (e) kill(-pid, SIGKILL);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
            }
        }
        close(ends[0]);
    }
    clt_status st;
    if (e)
        st = clt_error(CLT_BAD_CONFIG, "credential_process failed: %s",
                       e == ETIMEDOUT ? "it did not end within 60 s" : strerror(e));
    else if (status)
        st = clt_error(CLT_BAD_CONFIG,
                       "credential_process failed: it ended with %s %d; run it in a shell to see why",
                       WIFEXITED(status) ? "code" : "signal",
                       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    else
        st = read_json(text, n, "credential_process", "SessionToken", out);
    explicit_bzero(text, MAX_OUTPUT);
    clt_free(text);
    return st;
}

/* --- metadata services --- */

static const char instance[] = "http://169.254.169.254/latest/";

/* The body of a small request, to be freed; NULL: no answer, or another status than 200. */
static char *ask(const char *method, const char *url, const char *header) {
    clt_http_response r;
    const clt_http_request q = {
        .method = method, .url = url, .headers = &header, .n_headers = header ? 1 : 0, .seconds = 5};
    char *text = NULL;
    if (clt_http_perform(&q, &r) == 0 && r.status == 200 && r.text) text = clt_strndup(r.text, r.text_bytes);
    clt_http_response_free(&r);
    return text;
}

static clt_status from_container(const char *url, clt_s3_credentials *out) {
    const char *token = clt_env(CLT_ENV_AWS_CONTAINER_AUTHORIZATION_TOKEN);
    char *header = token ? clt_format("authorization: %s", token) : NULL, *text = ask("GET", url, header);
    const clt_status st =
        text ? read_json(text, strlen(text), "the container's metadata service", "Token", out)
             : clt_error(CLT_BAD_CONFIG, "the container's metadata service gave no credentials");
    clt_free(header);
    clt_free(text);
    return st;
}

clt_status clt_s3_from_metadata(clt_s3_credentials *out) {
    const char *full = clt_env(CLT_ENV_AWS_CONTAINER_CREDENTIALS_FULL_URI),
               *relative = clt_env(CLT_ENV_AWS_CONTAINER_CREDENTIALS_RELATIVE_URI);
    if (full) return from_container(full, out);
    if (relative) {
        char *url = clt_format("http://169.254.170.2%s", relative);
        const clt_status st = from_container(url, out);
        clt_free(url);
        return st;
    }
    char *url = clt_format("%sapi/token", instance);
    char *token = ask("PUT", url, "x-aws-ec2-metadata-token-ttl-seconds: 300");
    clt_free(url);
    if (!token) return CLT_OK;
    char *header = clt_format("x-aws-ec2-metadata-token: %s", token);
    url = clt_format("%smeta-data/iam/security-credentials/", instance);
    char *role = ask("GET", url, header), *text = NULL;
    if (role) {
        char *named = clt_format("%s%.*s", url, (int)strcspn(role, "\r\n"), role);
        text = ask("GET", named, header);
        clt_free(named);
    }
    const clt_status st =
        text ? read_json(text, strlen(text), "the instance's metadata service", "Token", out) : CLT_OK;
    clt_free(url);
    clt_free(token);
    clt_free(header);
    clt_free(role);
    clt_free(text);
    return st;
}
