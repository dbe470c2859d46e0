#include "runtime/object/clt_s3_sources.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/object/clt_http.h"
#include "runtime/object/clt_s3_sign.h"

enum { MAX_OUTPUT = 64 << 10 };

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

/* Overwrites the secrets in the parsed text. */
static void wipe_json(json_t *o) {
    const char *key;
    json_t *value;
    json_object_foreach(o, key, value) {
        if (json_is_string(value))
            explicit_bzero((char *)json_string_value(value), json_string_length(value));
    }
    json_decref(o);
}

/* `token`: the name of the session token. Nothing of the text is shown. */
static clt_status take_json(json_t *o, const char *source, const char *token, clt_s3_credentials *out) {
    const char *access = text_of(o, "AccessKeyId"), *secret = text_of(o, "SecretAccessKey"),
               *session = text_of(o, token);
    json_t *expires = json_object_get(o, "Expiration");
    const bool ends = expires && !json_is_null(expires);
    const double end = !ends ? INFINITY : json_is_string(expires) ? expiry_of(json_string_value(expires)) : 0;
    if (!access || !secret || !*access || !*secret)
        return clt_error(CLT_BAD_CONFIG, "%s gave no JSON with AccessKeyId and SecretAccessKey", source);
    if (end == 0)
        return clt_error(CLT_BAD_CONFIG, "%s gave an Expiration that is no time (2030-01-31T12:00:00Z)",
                         source);
    *out = (clt_s3_credentials){clt_strdup(access), clt_strdup(secret),
                                session && *session ? clt_strdup(session) : NULL, end, clt_strdup(source)};
    return CLT_OK;
}

/* Not clt_json_parse, whose messages show what is near an error. */
static json_t *parsed(const char *text, size_t bytes) {
    json_error_t error;
    return json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
}

/* --- a program --- */

/* How often a wait looks at the clock and at requests to stop. */
static const double glance = 0.1;

/* 0, or why to wait no longer. */
static int waited(double end) {
    return clt_io_stop_requested() ? ECANCELED : clt_now() >= end ? ETIMEDOUT : 0;
}

/* Reads what the child writes until it closes its end, at most until `end`. */
static int read_output(int fd, double end, char *to, size_t cap, size_t *n) {
    *n = 0;
    for (int e; !(e = waited(end));) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)(glance * 1000)) < 0 && errno != EINTR) return errno;
        if (!p.revents) continue;
        if (*n == cap) return EMSGSIZE;
        const ssize_t got = read(fd, to + *n, cap - *n);
        if (got < 0 && errno != EINTR) return errno;
        if (got == 0) return 0;
        if (got > 0) *n += (size_t)got;
    }
    return waited(end);
}

/* A program may close its output long before it ends. */
static int wait_for(pid_t pid, double end, int *status) {
    double pause = 0.001;
    for (int e;;) {
        const pid_t ended = waitpid(pid, status, WNOHANG);
        if (ended == pid) return 0;
        if (ended < 0 && errno != EINTR) return errno;
        if ((e = waited(end))) return e;
        clt_sleep(pause);
        pause = CLT_MIN(2 * pause, glance);
    }
}

static int start(const char *command, int write_end, pid_t *pid) {
    char *argv[] = {"/bin/sh", "-c", (char *)command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, pipe;
    sigemptyset(&none);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE); /* a run ignores it */
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, write_end, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    /* What it says about a failure may hold a secret. */
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &pipe);
    /* A group of its own, so that what the shell started can be ended with it. */
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int e = posix_spawn(pid, argv[0], &files, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return e;
}

/* Its output and status; an errno value if it could not be run to its end. */
static int run(const char *command, double seconds, char *text, size_t *n, int *status) {
    const double end = clt_now() + seconds;
    int ends[2];
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC)) return errno;
    int e = start(command, ends[1], &pid);
    close(ends[1]);
    if (!e) {
        e = read_output(ends[0], end, text, MAX_OUTPUT, n);
        if (!e) e = wait_for(pid, end, status);
        if (e) {
            kill(-pid, SIGKILL);
            while (waitpid(pid, status, 0) < 0 && errno == EINTR) {
            }
        }
    }
    close(ends[0]);
    return e;
}

static clt_status process_failed(int e, int status, double seconds) {
    if (e == ECANCELED) return CLT_STOPPED;
    if (e == ETIMEDOUT)
        return clt_error(CLT_BAD_CONFIG, "credential_process failed: it did not end within %.3g s", seconds);
    if (e == EMSGSIZE)
        return clt_error(CLT_BAD_CONFIG, "credential_process failed: it printed more than %d KiB",
                         MAX_OUTPUT >> 10);
    if (e) return clt_error(CLT_BAD_CONFIG, "credential_process failed: %s", strerror(e));
    return clt_error(
        CLT_BAD_CONFIG, "credential_process failed: it ended with %s %d; run it in a shell to see why",
        WIFEXITED(status) ? "code" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

clt_status clt_s3_from_process(const char *command, double seconds, clt_s3_credentials *out) {
    char *text = clt_malloc(MAX_OUTPUT);
    size_t n = 0;
    int status = 0, e = run(command, seconds, text, &n, &status);
    clt_status st;
    if (e || status) {
        st = process_failed(e, status, seconds);
    } else {
        clt_s3_credentials got = {0};
        json_t *o = parsed(text, n);
        st = take_json(o, "credential_process", "SessionToken", &got);
        if (st == CLT_OK && json_integer_value(json_object_get(o, "Version")) != 1) {
            clt_s3_credentials_free(&got);
            st = clt_error(CLT_BAD_CONFIG, "credential_process gave JSON without \"Version\": 1");
        }
        if (st == CLT_OK) *out = got;
        wipe_json(o);
    }
    explicit_bzero(text, MAX_OUTPUT);
    clt_free(text);
    return st;
}

/* --- metadata services --- */

static const char instance[] = "http://169.254.169.254";
enum { ASK_SECONDS = 5, MAX_ASKED = 3, MAX_TOKEN = 64 << 10 };

/* Whether another attempt may help: the service is starting, limits requests, or the connection broke. */
static bool may_pass(int e, int status) {
    return e == ECONNRESET || status == 429 || status / 100 == 5;
}

/* The body of a small request, to be freed; NULL: none, and *status is what came instead (0: nothing). */
static char *ask(const char *method, const char *url, const char *header, int *status) {
    const clt_http_request q = {.method = method,
                                .url = url,
                                .headers = &header,
                                .n_headers = header ? 1 : 0,
                                .seconds = ASK_SECONDS};
    char *text = NULL;
    for (int i = 1;; i++) {
        clt_http_response r;
        const int e = clt_http_perform(&q, &r);
        *status = e ? 0 : r.status;
        if (!e && r.status == 200 && r.text) text = clt_strndup(r.text, r.text_bytes);
        if (r.text) explicit_bzero(r.text, r.text_bytes);
        clt_http_response_free(&r);
        if (i == MAX_ASKED || !may_pass(e, *status) || clt_io_stop_requested()) return text;
        clt_sleep(0.1 * i);
    }
}

static void wipe(char *secret) {
    if (secret) explicit_bzero(secret, strlen(secret));
    clt_free(secret);
}

/* `text` of a service, which is freed. */
static clt_status take_answer(char *text, const char *source, clt_s3_credentials *out) {
    json_t *o = parsed(text, strlen(text));
    const clt_status st = take_json(o, source, "Token", out);
    wipe_json(o);
    wipe(text);
    return st;
}

/* What is sent must not leave the machine in plain text: https, loopback, or one of the addresses that a
 * service on the machine has. */
static bool may_ask(const char *url, const char *const *services, size_t n) {
    if (!clt_s3_is_printable(url)) return false;
    if (!strncasecmp(url, "https://", 8)) return true;
    if (strncasecmp(url, "http://", 7) != 0 || url[7 + strcspn(url + 7, "/?#@\\")] == '@') return false;
    char *host = clt_s3_host_of(url);
    bool ok = clt_s3_is_loopback(host);
    for (size_t i = 0; i < n; i++) ok |= !strcasecmp(host, services[i]);
    clt_free(host);
    return ok;
}

/* --- of a container --- */

/* Kubernetes replaces the file, so it is read each time. */
static clt_status container_token(char **out) {
    const char *path = clt_env(CLT_ENV_AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE),
               *token = clt_env(CLT_ENV_AWS_CONTAINER_AUTHORIZATION_TOKEN),
               *from = path ? "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE" : "AWS_CONTAINER_AUTHORIZATION_TOKEN";
    *out = NULL;
    if (path) {
        CLT_TRY(clt_io_read_all(path, MAX_TOKEN, out, NULL));
        for (size_t n = strlen(*out); n && strchr("\r\n", (*out)[n - 1]); n--) (*out)[n - 1] = 0;
    } else if (token) {
        *out = clt_strdup(token);
    }
    if (!*out || clt_s3_is_printable(*out)) return CLT_OK;
    wipe(*out);
    *out = NULL;
    return clt_error(CLT_BAD_CONFIG,
                     "%s has a space, a line end or another character that no header can have", from);
}

static clt_status from_container(const char *url, clt_s3_credentials *out) {
    /* ECS and EKS have these. */
    static const char *const services[] = {"169.254.170.2", "169.254.170.23", "fd00:ec2::23"};
    char *token;
    int status;
    if (!may_ask(url, services, CLT_COUNT_OF(services)))
        return clt_error(CLT_BAD_CONFIG,
                         "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https://..., or http:// to loopback, "
                         "169.254.170.2 or 169.254.170.23: the credentials would be sent unencrypted");
    CLT_TRY(container_token(&token));
    char *header = token ? clt_format("authorization: %s", token) : NULL,
         *text = ask("GET", url, header, &status);
    wipe(header);
    wipe(token);
    if (!text)
        return clt_error(CLT_BAD_CONFIG,
                         "the container's metadata service gave no credentials (%s%.0d); unset "
                         "CLTRAIN_S3_METADATA if there is none",
                         status ? "status " : "no response", status);
    return take_answer(text, "the container's metadata service", out);
}

/* --- of an instance --- */

/* Version 2 of the service: a token, with it the role's name, with that its credentials. *out NULL: no
 * service or no role. */
static clt_status ask_instance(const char *service, char **out) {
    int status;
    char *url = clt_format("%s/latest/api/token", service), *header = NULL, *role = NULL;
    char *token = ask("PUT", url, "x-aws-ec2-metadata-token-ttl-seconds: 300", &status);
    *out = NULL;
    if (token && clt_s3_is_printable(token)) {
        clt_free(url);
        url = clt_format("%s/latest/meta-data/iam/security-credentials/", service);
        header = clt_format("x-aws-ec2-metadata-token: %s", token);
        role = ask("GET", url, header, &status);
    }
    if (role) {
        clt_str named = {0};
        clt_str_add(&named, url);
        role[strcspn(role, "\r\n")] = 0;
        clt_s3_encode(&named, role, false);
        *out = ask("GET", named.s, header, &status);
        clt_str_free(&named);
    }
    const bool none = !token || (!role && status == 404); /* an instance without a role */
    clt_free(role);
    wipe(header);
    wipe(token);
    clt_free(url);
    if (*out || none) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "the instance's metadata service gave no credentials (%s%.0d)",
                     status ? "status " : "no response", status);
}

static clt_status from_instance(clt_s3_credentials *out) {
    static const char *const services[] = {"169.254.169.254", "fd00:ec2::254"};
    const char *set = clt_env(CLT_ENV_AWS_EC2_METADATA_SERVICE_ENDPOINT),
               *disabled = clt_env(CLT_ENV_AWS_EC2_METADATA_DISABLED);
    if (disabled && !strcasecmp(disabled, "true")) return CLT_OK;
    if (set && !may_ask(set, services, CLT_COUNT_OF(services)))
        return clt_error(CLT_BAD_CONFIG,
                         "AWS_EC2_METADATA_SERVICE_ENDPOINT must be https://..., or http:// to loopback, "
                         "169.254.169.254 or [fd00:ec2::254]: the credentials would be sent unencrypted");
    char *service = clt_strdup(set ? set : instance), *text;
    for (size_t n = strlen(service); n && service[n - 1] == '/'; n--) service[n - 1] = 0;
    const clt_status st = ask_instance(service, &text);
    clt_free(service);
    return text ? take_answer(text, "the instance's metadata service", out) : st;
}

clt_status clt_s3_from_metadata(clt_s3_credentials *out) {
    const char *full = clt_env(CLT_ENV_AWS_CONTAINER_CREDENTIALS_FULL_URI),
               *relative = clt_env(CLT_ENV_AWS_CONTAINER_CREDENTIALS_RELATIVE_URI);
    if (full) return from_container(full, out);
    if (relative && (*relative != '/' || !clt_s3_is_printable(relative)))
        return clt_error(CLT_BAD_CONFIG, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI must be a path: /...");
    if (relative) {
        char *url = clt_format("http://169.254.170.2%s", relative);
        const clt_status st = from_container(url, out);
        clt_free(url);
        return st;
    }
    return from_instance(out);
}
