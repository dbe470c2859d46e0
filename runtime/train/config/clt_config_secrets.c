/* URLs with credentials. A configuration is printed, kept beside the checkpoints and inside them, so no key
 * may hold a secret; the credentials of object stores come from the environment and the AWS files. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_config_internal.h"

/* "user:password@host": the password may have slashes, a host has at most a port after its colon. `url` is
 * what follows SCHEME://, n bytes up to its query. */
static bool has_password(const char *url, size_t n) {
    const size_t host = CLT_MIN(strcspn(url, "/"), n);
    const char *colon = memchr(url, ':', host), *at = memchr(url, '@', n);
    if (at && at < url + host) return true;
    return at && colon && (size_t)(colon + 1 - url) + strspn(colon + 1, "0123456789") < host;
}

static bool names_secret(const char *name, size_t n) {
    static const char *const whole[] = {"sig", "key", "auth", "pwd"};
    static const char *const part[] = {"signature", "credential", "token",      "secret",  "password",
                                       "passwd",    "accesskey",  "access_key", "api_key", "apikey"};
    char lower[64];
    snprintf(lower, sizeof lower, "%.*s", (int)CLT_MIN(n, sizeof lower - 1), name);
    for (char *s = lower; *s; s++) *s = (char)tolower((unsigned char)*s);
    for (size_t i = 0; i < CLT_COUNT_OF(whole); i++)
        if (!strcmp(lower, whole[i])) return true;
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++)
        if (strstr(lower, part[i])) return true;
    return false;
}

/* `query` is what follows '?'. */
static bool has_secret_part(const char *query) {
    while (*query) {
        const size_t n = strcspn(query, "&;#"), name = strcspn(query, "=&;#");
        if (name < n && names_secret(query, name)) return true;
        query += n + (query[n] != 0);
    }
    return false;
}

/* The place of a value on the command line holds the value. */
static clt_status refuse(clt_schema_reader *r, const char *path, const char *what) {
    char *place = r->place ? r->place(r->ctx, path) : clt_strdup(r->what);
    clt_error(
        r->status,
        "%s: key '%s' is a URL with %s, which would be printed and saved with the configuration: remove "
        "it; credentials of object stores come from the environment (AWS_ACCESS_KEY_ID, ...) or "
        "~/.aws/credentials",
        strstr(place, "://") ? "command line" : place, path, what);
    clt_free(place);
    return r->status;
}

static clt_status check_text(clt_schema_reader *r, const char *path, const char *text) {
    const size_t scheme = clt_path_scheme(text);
    if (!scheme || strpbrk(text, " \t\r\n")) return CLT_OK;
    const char *url = text + scheme, *query = url + strcspn(url, "?");
    if (has_password(url, (size_t)(query - url)))
        return refuse(r, path, "a user or a password before the host");
    if (*query && has_secret_part(query + 1))
        return refuse(r, path, "a signature, key or token after its '?'");
    return CLT_OK;
}

static char *join(const char *path, const char *name) {
    return *path ? clt_format("%s.%s", path, name) : clt_strdup(name);
}

clt_status clt_config_refuse_secrets(clt_schema_reader *r, const char *path, const json_t *v) {
    clt_status st = CLT_OK;
    const char *name;
    json_t *child;
    size_t i;
    if (json_is_string(v)) return check_text(r, path, json_string_value(v));
    json_object_foreach((json_t *)v, name, child) {
        char *at = join(path, name);
        if (st == CLT_OK) st = clt_config_refuse_secrets(r, at, child);
        clt_free(at);
    }
    json_array_foreach(v, i, child) {
        char *at = clt_format("%s.%zu", path, i);
        if (st == CLT_OK) st = clt_config_refuse_secrets(r, at, child);
        clt_free(at);
    }
    return st;
}
