#include "runtime/object/clt_s3_config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_io.h"
#include "runtime/object/clt_s3_sources.h"

static const double process_seconds = 60;

/* --- the files --- */

/* What a profile of the two files says. */
typedef struct {
    const char *wanted; /* the profile's name */
    bool in_config;     /* sections are "profile NAME" but for "default" */
    bool found;
    int line; /* of the first of its keys to an account */
    char *access_key, *secret_key, *session_token, *process, *region, *endpoint;
    char *other; /* its first key to credentials that only the AWS tools can get */
    int other_line;
} profile;

static void wipe(char **secret) {
    if (*secret) explicit_bzero(*secret, strlen(*secret));
    clt_free(*secret);
    *secret = NULL;
}

static void profile_free(profile *p) {
    wipe(&p->access_key);
    wipe(&p->secret_key);
    wipe(&p->session_token);
    clt_free(p->process);
    clt_free(p->region);
    clt_free(p->endpoint);
    clt_free(p->other);
}

/* Single sign-on and assumed roles need services of AWS besides the store. */
static bool needs_aws(const char *key) {
    return !strncasecmp(key, "sso_", 4) || !strcasecmp(key, "role_arn") ||
           !strcasecmp(key, "source_profile") || !strcasecmp(key, "credential_source") ||
           !strcasecmp(key, "web_identity_token_file");
}

static bool is_wanted(const profile *p, const char *section) {
    if (!strncmp(section, "profile", 7) && isspace((unsigned char)section[7])) {
        section += 8;
        while (isspace((unsigned char)*section)) section++;
        return p->in_config && !strcmp(section, p->wanted);
    }
    return !strcmp(section, p->wanted) && (!p->in_config || !strcmp(section, "default"));
}

static clt_status take(void *ctx, const char *section, const char *key, const char *value, int line) {
    profile *p = ctx;
    if (!is_wanted(p, section)) return CLT_OK;
    p->found = true;
    const struct {
        const char *key;
        char **to;
    } known[] = {{"aws_access_key_id", &p->access_key},
                 {"aws_secret_access_key", &p->secret_key},
                 {"aws_session_token", &p->session_token},
                 {"credential_process", &p->process},
                 {"region", &p->region},
                 {"endpoint_url", &p->endpoint}};
    for (size_t i = 0; i < CLT_COUNT_OF(known); i++)
        if (!strcasecmp(key, known[i].key) && *value && !*known[i].to) {
            *known[i].to = clt_strdup(value);
            if (i < 2 && !p->line) p->line = line;
        }
    if (needs_aws(key) && !p->other) {
        p->other = clt_strdup(key);
        p->other_line = line;
    }
    return CLT_OK;
}

/* Where a file of the AWS tools is; NULL: HOME is not known. To be freed. */
static char *file_of(clt_env_id variable, const char *name) {
    const char *set = clt_env(variable), *home = clt_env(CLT_ENV_HOME);
    if (set) return !strncmp(set, "~/", 2) && home ? clt_path_join(home, set + 2) : clt_strdup(set);
    return home ? clt_format("%s/.aws/%s", home, name) : NULL;
}

static clt_status read_file(const char *path, profile *p) {
    char *text;
    size_t bytes;
    if (path && strstr(path, "://") && strncmp(path, "file://", 7) != 0)
        return clt_error(CLT_BAD_CONFIG, "%s: the AWS tools' files must be local", path);
    if (!path || !clt_io_is_file(path)) return CLT_OK;
    CLT_TRY(clt_io_read_all(path, 1 << 20, &text, &bytes));
    const clt_status st = clt_ini_parse(path, text, bytes, take, p);
    explicit_bzero(text, bytes);
    clt_free(text);
    return st;
}

/* --- credentials --- */

static void set_credentials(clt_s3_credentials *c, const char *access, const char *secret, const char *token,
                            char *source) {
    *c = (clt_s3_credentials){clt_strdup(access), clt_strdup(secret), token ? clt_strdup(token) : NULL,
                              INFINITY, source};
}

static clt_status from_environment(clt_s3_credentials *c) {
    const char *access = clt_env(CLT_ENV_AWS_ACCESS_KEY_ID), *secret = clt_env(CLT_ENV_AWS_SECRET_ACCESS_KEY);
    if (!access != !secret)
        return clt_error(CLT_BAD_CONFIG, "%s is set, but %s is not: set both or none",
                         access ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                         access ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    if (access)
        set_credentials(c, access, secret, clt_env(CLT_ENV_AWS_SESSION_TOKEN), clt_strdup("the environment"));
    return CLT_OK;
}

static clt_status from_profile(clt_s3_credentials *c, const profile *p, const char *path) {
    if (!p->access_key && !p->secret_key) return CLT_OK;
    if (!p->access_key || !p->secret_key)
        return clt_error(CLT_BAD_CONFIG,
                         "%s:%d: profile %s has only one of aws_access_key_id and aws_secret_access_key",
                         path, p->line, p->wanted);
    set_credentials(c, p->access_key, p->secret_key, p->session_token,
                    clt_format("%s [%s]", path, p->wanted));
    return CLT_OK;
}

/* The AWS tools prefer these keys of a profile to all others, so what else it has would be another identity.
 */
static clt_status refuse_other(const profile *p, const char *path) {
    if (!p->other) return CLT_OK;
    return clt_error(
        CLT_BAD_CONFIG,
        "%s:%d: %s of profile %s: cltrain cannot log in or assume roles. Add a profile with "
        "\"credential_process = aws configure export-credentials --profile %s --format process\" "
        "and set AWS_PROFILE to its name, or set the variables that \"aws configure "
        "export-credentials --profile %s --format env\" prints",
        path, p->other_line, p->other, p->wanted, p->wanted, p->wanted);
}

static clt_status refuse_web_identity(void) {
    if (!clt_env(CLT_ENV_AWS_WEB_IDENTITY_TOKEN_FILE)) return CLT_OK;
    return clt_error(
        CLT_BAD_CONFIG,
        "AWS_WEB_IDENTITY_TOKEN_FILE is set, but cltrain cannot assume roles: use EKS Pod Identity "
        "with CLTRAIN_S3_METADATA=1, or set the variables that \"aws configure export-credentials "
        "--format env\" prints");
}

/* Bytes that would end a header are refused here, whatever the source. */
static clt_status check_credentials(const clt_s3_credentials *c) {
    const char *const bad = !clt_s3_is_printable(c->access_key)                          ? "access key"
                            : !clt_s3_is_printable(c->secret_key)                        ? "secret key"
                            : c->session_token && !clt_s3_is_printable(c->session_token) ? "session token"
                                                                                         : NULL;
    if (!bad) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG,
                     "the %s from %s has a space, a line end or another character that no key has", bad,
                     c->source);
}

/* The first source that has credentials; region and endpoint of the profile, too. */
static clt_status find_credentials(clt_s3_credentials *c, char **region, char **endpoint) {
    const char *name = clt_env(CLT_ENV_AWS_PROFILE);
    profile keys = {.wanted = name ? name : "default"}, config = {.wanted = keys.wanted, .in_config = true};
    char *key_file = file_of(CLT_ENV_AWS_SHARED_CREDENTIALS_FILE, "credentials"),
         *config_file = file_of(CLT_ENV_AWS_CONFIG_FILE, "config");
    *c = (clt_s3_credentials){.expires = INFINITY};
    clt_status st = from_environment(c);
    if (st == CLT_OK) st = read_file(key_file, &keys);
    if (st == CLT_OK) st = read_file(config_file, &config);
    if (st == CLT_OK && name && !keys.found && !config.found)
        st = clt_error(CLT_BAD_CONFIG, "AWS_PROFILE: no profile %s in %s or %s", name,
                       key_file ? key_file : "-", config_file ? config_file : "-");
    if (st == CLT_OK && !c->access_key) st = refuse_other(&keys, key_file);
    if (st == CLT_OK && !c->access_key) st = refuse_other(&config, config_file);
    if (st == CLT_OK && !c->access_key) st = from_profile(c, &keys, key_file);
    if (st == CLT_OK && !c->access_key) st = from_profile(c, &config, config_file);
    const char *process = keys.process ? keys.process : config.process;
    if (st == CLT_OK && !c->access_key && process) st = clt_s3_from_process(process, process_seconds, c);
    if (st == CLT_OK && !c->access_key && clt_env_long(CLT_ENV_S3_METADATA, 0)) st = clt_s3_from_metadata(c);
    if (st == CLT_OK && !c->access_key) st = refuse_web_identity();
    if (st == CLT_OK && c->access_key) st = check_credentials(c);
    if (st == CLT_OK && region)
        *region = keys.region ? clt_strdup(keys.region) : clt_strdup(config.region ? config.region : "");
    if (st == CLT_OK && endpoint)
        *endpoint =
            keys.endpoint ? clt_strdup(keys.endpoint) : clt_strdup(config.endpoint ? config.endpoint : "");
    profile_free(&keys);
    profile_free(&config);
    clt_free(key_file);
    clt_free(config_file);
    return st;
}

void clt_s3_credentials_free(clt_s3_credentials *c) {
    wipe(&c->access_key);
    wipe(&c->secret_key);
    wipe(&c->session_token);
    clt_free(c->source);
    *c = (clt_s3_credentials){.expires = INFINITY};
}

/* --- endpoint and region --- */

char *clt_s3_host_of(const char *url) {
    const char *host = strstr(url, "://") + 3;
    if (*host == '[') return clt_strndup(host + 1, strcspn(host + 1, "]"));
    return clt_strndup(host, strcspn(host, ":/"));
}

/* The whole of 127.0.0.0/8, but no name that begins like it. */
bool clt_s3_is_loopback(const char *host) {
    struct in_addr address;
    if (inet_pton(AF_INET, host, &address) == 1) return (ntohl(address.s_addr) >> 24) == 127;
    return !strcasecmp(host, "localhost") || !strcmp(host, "::1");
}

bool clt_s3_is_printable(const char *text) {
    for (; *text; text++)
        if (*text <= ' ' || *text > '~') return false;
    return true;
}

/* HOST, HOST:PORT, [IPv6] or [IPv6]:PORT. */
static bool is_authority(const char *s) {
    size_t n = 0;
    int64_t port;
    if (*s == '[') {
        struct in6_addr address;
        char *inside = clt_strndup(s + 1, strcspn(s + 1, "]"));
        n = strlen(inside) + 2;
        const bool ok = s[n - 1] == ']' && inet_pton(AF_INET6, inside, &address) == 1;
        clt_free(inside);
        if (!ok) return false;
    } else {
        while (isalnum((unsigned char)s[n]) || (s[n] && strchr("-._", s[n]))) n++;
        if (n == 0) return false;
    }
    if (!s[n]) return true;
    return s[n] == ':' && isdigit((unsigned char)s[n + 1]) && clt_parse_i64(s + n + 1, &port) && port > 0 &&
           port < 65536;
}

/* Whether a list "a,b" names the host. */
static bool names(const char *list, const char *host) {
    for (size_t n; list && *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n == strlen(host) && !strncasecmp(list, host, n)) return true;
    }
    return false;
}

static clt_status check_endpoint(const char *from, char *endpoint) {
    size_t n = strlen(endpoint);
    while (n && endpoint[n - 1] == '/') endpoint[--n] = 0;
    const bool plain = !strncasecmp(endpoint, "http://", 7), tls = !strncasecmp(endpoint, "https://", 8);
    const char *host = endpoint + (plain ? 7 : 8);
    if ((!plain && !tls) || !is_authority(host))
        return clt_error(CLT_BAD_CONFIG,
                         "%s must be https://HOST or https://HOST:PORT, without a path or a user", from);
    if (tls) return CLT_OK;
    char *name = clt_s3_host_of(endpoint);
    clt_status st = CLT_OK;
    if (!clt_s3_is_loopback(name) && !names(clt_env(CLT_ENV_S3_INSECURE), name))
        st = clt_error(
            CLT_BAD_CONFIG,
            "%s: http:// to %s would send data unencrypted: use https://, or set CLTRAIN_S3_INSECURE=%s",
            from, name, name);
    clt_free(name);
    return st;
}

static bool is_region(const char *s) {
    size_t n = 0;
    for (; s[n]; n++)
        if (!isalnum((unsigned char)s[n]) && s[n] != '-' && s[n] != '_') return false;
    return n > 0 && n < 64;
}

/* Takes over both texts of the profile ("": none). */
static clt_status set_place(clt_s3_config *out, char *region, char *endpoint) {
    static const clt_env_id places[] = {CLT_ENV_AWS_ENDPOINT_URL_S3, CLT_ENV_AWS_ENDPOINT_URL,
                                        CLT_ENV_S3_ENDPOINT_URL};
    const char *from = "the profile's endpoint_url", *place = *endpoint ? endpoint : NULL;
    for (size_t i = CLT_COUNT_OF(places); i-- > 0;)
        if (clt_env(places[i])) place = clt_env(places[i]), from = clt_env_name(places[i]);
    const char *set =
        clt_env(CLT_ENV_AWS_REGION) ? clt_env(CLT_ENV_AWS_REGION) : clt_env(CLT_ENV_AWS_DEFAULT_REGION);
    out->region = clt_strdup(set ? set : *region ? region : "us-east-1");
    out->path_style = place != NULL;
    out->endpoint = place ? clt_strdup(place) : clt_format("https://s3.%s.amazonaws.com", out->region);
    clt_free(region);
    clt_free(endpoint);
    if (!is_region(out->region))
        return clt_error(CLT_BAD_CONFIG, "the region '%.80s' is no name of a region", out->region);
    const char *style = clt_env(CLT_ENV_S3_STYLE);
    if (style && strcmp(style, "path") && strcmp(style, "virtual"))
        return clt_error(CLT_BAD_CONFIG, "CLTRAIN_S3_STYLE is 'path' or 'virtual', not '%s'", style);
    if (style) out->path_style = !strcmp(style, "path");
    return check_endpoint(place ? from : "the endpoint", out->endpoint);
}

/* --- the interface --- */

clt_status clt_s3_config_read(clt_s3_config *out) {
    clt_s3_config c = {0};
    char *region = NULL, *endpoint = NULL;
    clt_status st = find_credentials(&c.credentials, &region, &endpoint);
    if (st == CLT_OK) st = set_place(&c, region, endpoint);
    if (st == CLT_OK)
        *out = c;
    else
        clt_s3_config_free(&c);
    return st;
}

void clt_s3_config_free(clt_s3_config *c) {
    clt_s3_credentials_free(&c->credentials);
    clt_free(c->endpoint);
    clt_free(c->region);
    c->endpoint = c->region = NULL;
}

clt_status clt_s3_config_refresh(clt_s3_config *c) {
    clt_s3_credentials fresh;
    const clt_status st = find_credentials(&fresh, NULL, NULL);
    if (st != CLT_OK) {
        clt_s3_credentials_free(&fresh);
        return st;
    }
    if (!fresh.access_key && c->credentials.access_key) {
        clt_s3_credentials_free(&fresh);
        return clt_error(CLT_BAD_CONFIG, "%s has no credentials any more; those that were read stay in use",
                         c->credentials.source);
    }
    clt_s3_credentials_free(&c->credentials);
    c->credentials = fresh;
    return CLT_OK;
}

char *clt_s3_config_describe(const clt_s3_config *c) {
    clt_str out = {0};
    const char *key = c->credentials.access_key;
    clt_str_addf(&out, "%s, region %s, %s style, ", c->endpoint, c->region,
                 c->path_style ? "path" : "virtual-host");
    if (!key)
        clt_str_add(&out, "without credentials");
    else
        clt_str_addf(&out, "credentials from %s", c->credentials.source);
    if (key && strlen(key) >= 16) clt_str_addf(&out, " (%.4s...%s)", key, key + strlen(key) - 4);
    return out.s;
}
