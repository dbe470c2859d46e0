/* One call of clt_s3: attempts, what their failures mean, and the text for the last one. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "runtime/base/clt_io.h"
#include "runtime/object/clt_s3_internal.h"

static const double first_wait = 0.2, longest_wait = 20, longest_asked = 60; /* seconds */
static const double first_contact = 60; /* for a store that never responded */
static const double warn_after = 10, warn_every = 60;
static const double renew_before = 60, renew_at_most_every = 30; /* credentials */
static const double skew_allowed = 300;
enum { MAX_DAMAGED = 3 };

static struct {
    atomic_ullong retries;
    _Atomic double waited;
} totals;

uint64_t clt_s3_retries(void) {
    return totals.retries;
}
double clt_s3_waited(void) {
    return totals.waited;
}

/* --- the text --- */

static _Thread_local struct {
    char text[3072];
    size_t reason;
} failure;

const char *clt_s3_failure(void) {
    return failure.text;
}
const char *clt_s3_reason(void) {
    return failure.text + failure.reason;
}
void clt_s3_forget(void) {
    *failure.text = 0;
    failure.reason = 0;
}

static void hide_controls(char *text) {
    for (char *s = text; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127) *s = '?';
}

int clt_s3_fail(int e, const char *fmt, ...) {
    va_list ap;
    clt_s3_forget();
    va_start(ap, fmt);
    vsnprintf(failure.text, sizeof failure.text, fmt, ap);
    va_end(ap);
    hide_controls(failure.text);
    return e;
}

/* `text`, unless a store sent back what must not be printed. */
static const char *harmless(const clt_s3_call *c, const char *text) {
    for (int i = 0; i < 2; i++)
        if (*c->secret[i] && strstr(text, c->secret[i])) return "";
    return strstr(text, "Signature=") || strstr(text, "Credential=") ? "" : text;
}

static void say_reason(clt_str *b, const clt_s3_call *c, int e) {
    const clt_http_response *r = &c->response;
    clt_str_addf(b, "%s: ", c->method);
    if (r->status >= 200 && !(*r->error && r->status / 100 == 2)) {
        const char *code = harmless(c, c->error.code), *message = harmless(c, c->error.message);
        clt_str_addf(b, "%d%s%s", r->status, *code ? " " : "", code);
        if (*message && r->status != 404 && r->status != 412) clt_str_addf(b, ": %s", message);
    } else {
        clt_str_add(b, *r->error ? r->error : strerror(e));
    }
    if (c->attempts > 1) clt_str_addf(b, " after %d attempts", c->attempts);
    if (e == ETIMEDOUT && c->attempts > 1) clt_str_addf(b, " until the deadline");
    const char *id = harmless(c, *r->request_id ? r->request_id : c->error.request_id);
    if (*id) clt_str_addf(b, " (request id %s)", id);
}

static void say_advice(clt_str *b, const clt_s3_call *c, int e) {
    const char *code = c->error.code;
    if (e == EKEYEXPIRED)
        clt_str_add(b, "; the credentials expired, and their source has no newer ones");
    else if (e == ENODEV)
        clt_str_addf(b, "; there is no bucket %s", c->bucket);
    else if (e == EACCES && !*c->secret[0])
        clt_str_addf(b, "; there are no credentials, and the bucket does not grant everybody %s", c->right);
    else if (e == EACCES && !strcmp(code, "SignatureDoesNotMatch"))
        clt_str_add(b, "; the secret key is not the access key's, or a proxy changes requests");
    else if (e == EACCES && !strcmp(code, "InvalidAccessKeyId"))
        clt_str_add(b, "; the store does not know the access key");
    else if (e == EACCES && !strcmp(code, "RequestTimeTooSkewed"))
        clt_str_add(b, "; set this machine's clock");
    else if (e == EACCES)
        clt_str_addf(b, "; the credentials lack %s%s", c->right,
                     strcmp(c->right, "s3:GetObject") ? "" : " (or s3:ListBucket, and there is no such key)");
    else if (e == ESTALE && c->ranged)
        clt_str_add(b, "; the object changed while it was read");
    else if (c->response.status == 301 || c->response.status == 307)
        clt_str_add(b, "; the bucket is at another endpoint (AWS_REGION, AWS_ENDPOINT_URL)");
}

static int report(const clt_s3_call *c, int e) {
    clt_str b = {0};
    clt_str_addf(&b, "cannot %s s3://%s%s%s: ", c->verb, c->bucket, *c->key ? "/" : "", c->key);
    size_t reason = b.len;
    say_reason(&b, c, e);
    say_advice(&b, c, e);
    clt_s3_fail(e, "%s", b.s);
    failure.reason = reason < sizeof failure.text ? reason : 0;
    clt_str_free(&b);
    return e;
}

/* --- building a request --- */

void clt_s3_call_query(clt_s3_call *c, const char *name, const char *value) {
    if (value) c->query[c->n_query++] = (clt_s3_pair){name, value};
}
void clt_s3_call_header(clt_s3_call *c, const char *name, const char *value) {
    c->headers[c->n_headers++] = (clt_s3_pair){name, value};
}

void clt_s3_call_free(clt_s3_call *c) {
    clt_http_response_free(&c->response);
}

clt_s3_bucket *clt_s3_bucket_of(clt_s3 *s, const char *name) {
    pthread_mutex_lock(&s->lock);
    clt_s3_bucket *b = s->buckets;
    while (b && strcmp(b->name, name)) b = b->next;
    if (!b) {
        b = clt_calloc(1, sizeof *b);
        snprintf(b->name, sizeof b->name, "%s", name);
        b->next = s->buckets;
        s->buckets = b;
    }
    pthread_mutex_unlock(&s->lock);
    return b;
}

/* The host of a bucket in its region: ".OLD." in an endpoint of AWS becomes ".NEW.". */
static char *host_of(const clt_s3 *s, const char *region, const char *bucket, bool path_style) {
    char *old = clt_format(".%s.", s->config.region), *host;
    const char *at = strcmp(region, s->config.region) ? strstr(s->host, old) : NULL;
    const char *before = path_style ? "" : bucket, *dot = path_style ? "" : ".";
    if (at)
        host =
            clt_format("%s%s%.*s.%s.%s", before, dot, (int)(at - s->host), s->host, region, at + strlen(old));
    else
        host = clt_format("%s%s%s", before, dot, s->host);
    clt_free(old);
    return host;
}

/* What one attempt sends. */
typedef struct {
    char *host, *path, *url, region[64], *access, *secret, *token;
    clt_strv lines;
} sending;

static void wipe(char *secret) {
    if (secret) explicit_bzero(secret, strlen(secret));
    clt_free(secret);
}

static void sending_free(sending *m) {
    clt_free(m->host);
    clt_free(m->path);
    clt_free(m->url);
    wipe(m->access);
    wipe(m->secret);
    wipe(m->token);
    clt_strv_free(&m->lines);
}

static void take_secret(char to[17], const char *secret) {
    snprintf(to, 17, "%s", secret ? secret : "");
}

static void take_credentials(clt_s3 *s, clt_s3_call *c, sending *m) {
    clt_s3_bucket *b = clt_s3_bucket_of(s, c->bucket);
    pthread_mutex_lock(&s->lock);
    const clt_s3_credentials *k = &s->config.credentials;
    snprintf(m->region, sizeof m->region, "%s", *b->region ? b->region : s->config.region);
    c->generation = s->generation;
    if (k->access_key) {
        m->access = clt_strdup(k->access_key);
        m->secret = clt_strdup(k->secret_key);
        if (k->session_token) m->token = clt_strdup(k->session_token);
    }
    pthread_mutex_unlock(&s->lock);
    take_secret(c->secret[0], m->access);
    take_secret(c->secret[1], m->token);
}

static void make_url(clt_s3 *s, const clt_s3_call *c, sending *m) {
    /* The certificate of *.HOST does not cover a name with further dots. */
    bool path_style = s->config.path_style || (!strcmp(s->scheme, "https://") && strchr(c->bucket, '.'));
    clt_str url = {0};
    m->host = host_of(s, m->region, c->bucket, path_style);
    m->path =
        path_style ? clt_format("/%s%s%s", c->bucket, *c->key ? "/" : "", c->key) : clt_format("/%s", c->key);
    clt_str_addf(&url, "%s%s", s->scheme, m->host);
    clt_s3_encode(&url, m->path, true);
    for (size_t i = 0; i < c->n_query; i++) {
        clt_str_add(&url, i ? "&" : "?");
        clt_s3_encode(&url, c->query[i].name, false);
        clt_str_add(&url, "=");
        clt_s3_encode(&url, c->query[i].value, false);
    }
    m->url = url.s;
}

static void sign(clt_s3 *s, clt_s3_call *c, sending *m) {
    clt_s3_pair headers[10];
    size_t n = c->n_headers;
    char range[64];
    memcpy(headers, c->headers, n * sizeof *headers);
    if (c->ranged) {
        uint64_t from = c->offset + c->got;
        snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)from,
                 (unsigned long long)(from + (c->want - c->got) - 1));
        headers[n++] = (clt_s3_pair){"range", range};
        if (*c->etag) headers[n++] = (clt_s3_pair){"if-match", c->etag};
    }
    for (size_t i = 0; i < n; i++)
        clt_strv_add_owned(&m->lines, clt_format("%s: %s", headers[i].name, headers[i].value));
    c->signed_at = clt_wall() + s->skew;
    if (!m->access) return;
    const clt_s3_request_to_sign r = {.method = c->method,
                                      .host = m->host,
                                      .path = m->path,
                                      .query = c->query,
                                      .n_query = c->n_query,
                                      .headers = headers,
                                      .n_headers = n,
                                      .payload_sha256 = c->sha256,
                                      .time = (int64_t)c->signed_at,
                                      .region = m->region,
                                      .service = "s3",
                                      .access_key = m->access,
                                      .secret_key = m->secret,
                                      .session_token = m->token};
    clt_s3_sign(&r, &m->lines);
}

/* --- credentials --- */

/* Reads them again unless another thread did since `generation`. */
static bool refresh(clt_s3 *s, unsigned generation) {
    pthread_mutex_lock(&s->refreshing);
    bool fresh = s->generation != generation;
    if (!fresh) {
        /* The source may be a program that takes seconds: other calls go on with the old ones. */
        clt_s3_config copy = {0};
        clt_error_quiet(true);
        fresh = clt_s3_config_refresh(&copy) == CLT_OK;
        clt_error_quiet(false);
        pthread_mutex_lock(&s->lock);
        s->refreshed = clt_now();
        fresh = fresh && copy.credentials.access_key; /* a file may be away while it is replaced */
        if (fresh) {
            clt_s3_credentials old = s->config.credentials;
            s->config.credentials = copy.credentials;
            copy.credentials = old;
            s->generation++;
        }
        pthread_mutex_unlock(&s->lock);
        clt_s3_config_free(&copy);
    }
    pthread_mutex_unlock(&s->refreshing);
    return fresh;
}

static void refresh_in_time(clt_s3 *s) {
    pthread_mutex_lock(&s->lock);
    bool due = s->config.credentials.expires - (clt_wall() + s->skew) < renew_before &&
               clt_now() - s->refreshed > renew_at_most_every;
    unsigned generation = s->generation;
    pthread_mutex_unlock(&s->lock);
    if (due) refresh(s, generation);
}

/* --- one attempt --- */

static int attempt(clt_s3 *s, clt_s3_call *c, double seconds) {
    sending m = {0};
    refresh_in_time(s);
    take_credentials(s, c, &m);
    make_url(s, c, &m);
    sign(s, c, &m);
    const clt_http_request r = {.method = c->method,
                                .url = m.url,
                                .headers = (const char *const *)m.lines.v,
                                .n_headers = m.lines.n,
                                .body = c->body,
                                .body_bytes = c->body_bytes,
                                .into = c->ranged ? (char *)c->into + c->got : NULL,
                                .into_bytes = c->want - c->got,
                                .seconds = seconds,
                                .patient = c->patient,
                                .ask_first = c->ask_first};
    clt_http_response_free(&c->response);
    c->error = (clt_s3_error){0};
    int e = clt_http_perform(&r, &c->response);
    sending_free(&m);
    c->maybe_done |= c->response.resent;
    if (c->response.status) {
        s->responded = true;
        double date = clt_http_date(c->response.date);
        if (date > 0) s->ahead = date - clt_wall();
    }
    if (!e && c->response.text && (c->response.status / 100 != 2 || c->holds_error))
        clt_s3_xml_error(c->response.text, c->response.text_bytes, &c->error);
    return e;
}

typedef enum { DONE, FAILED, LATER, AT_ONCE } verdict;

static bool is_one_of(const char *code, const char *const *codes) {
    while (*codes && strcmp(code, *codes)) codes++;
    return *codes;
}

static bool passes(const clt_s3_call *c) {
    static const int statuses[] = {408, 429, 500, 502, 503, 504};
    static const char *const codes[] = {"InternalError",   "SlowDown",         "ServiceUnavailable",
                                        "RequestTimeout",  "OperationAborted", "ConditionalRequestConflict",
                                        "TooManyRequests", "Throttling",       NULL};
    for (size_t i = 0; i < CLT_COUNT_OF(statuses); i++)
        if (c->response.status == statuses[i]) return true;
    return is_one_of(c->error.code, codes);
}

static bool changed_on_the_way(const clt_s3_call *c) {
    static const char *const codes[] = {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", NULL};
    return is_one_of(c->error.code, codes);
}

static int refusal(const clt_s3_call *c) {
    const int status = c->response.status;
    const char *code = c->error.code;
    static const char *const full[] = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage",
                                       "StorageFull",   "EntityTooLarge",    NULL};
    if (is_one_of(code, full) || status == 507) return !strcmp(code, "EntityTooLarge") ? EFBIG : ENOSPC;
    if (status == 412) return ESTALE;
    if (!strcmp(code, "NoSuchBucket")) return ENODEV;
    if (status == 404) return ENOENT;
    if (status == 401 || status == 403) return EACCES;
    if (status == 501 || !strcmp(code, "NotImplemented")) return ENOTSUP;
    return EIO;
}

static bool takes_region(clt_s3 *s, clt_s3_call *c) {
    const char *region = *c->response.region ? c->response.region : c->error.region;
    const int status = c->response.status;
    if (c->moved || !*region || (status != 301 && status != 307 && status != 400 && status != 403))
        return false;
    clt_s3_bucket *b = clt_s3_bucket_of(s, c->bucket);
    pthread_mutex_lock(&s->lock);
    bool news = strcmp(*b->region ? b->region : s->config.region, region) &&
                strlen(region) < sizeof b->region &&
                strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(region);
    if (news) snprintf(b->region, sizeof b->region, "%s", region);
    pthread_mutex_unlock(&s->lock);
    c->moved = true;
    return news;
}

/* A response to HEAD has no body that could name the reason. */
static bool takes_time(clt_s3 *s, clt_s3_call *c) {
    double date = clt_http_date(c->response.date);
    if (date <= 0) date = c->error.server_time;
    bool named = !strcmp(c->error.code, "RequestTimeTooSkewed"),
         silent = c->response.status == 403 && !*c->error.code && fabs(date - c->signed_at) > skew_allowed;
    if (c->skewed || date <= 0 || !(named || silent)) return false;
    c->skewed = true;
    s->skew = date - clt_wall();
    return true;
}

static verdict judge_refusal(clt_s3 *s, clt_s3_call *c, int *e) {
    static const char *const expired[] = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired",
                                          "RequestExpired", NULL};
    *e = refusal(c);
    if (passes(c)) {
        c->maybe_done |= c->response.status >= 500 || c->response.status / 100 == 2;
        return LATER;
    }
    if (changed_on_the_way(c) && ++c->damaged < MAX_DAMAGED) return LATER;
    if (takes_region(s, c) || takes_time(s, c)) return AT_ONCE;
    if (!is_one_of(c->error.code, expired)) return FAILED;
    *e = EKEYEXPIRED;
    if (c->refreshed) return FAILED;
    c->refreshed = true;
    return refresh(s, c->generation) ? AT_ONCE : FAILED;
}

static verdict judge(clt_s3 *s, clt_s3_call *c, int *e) {
    const int status = c->response.status;
    if (*e == ECONNREFUSED || *e == EHOSTUNREACH) return LATER;
    if (*e == ECONNRESET || *e == ETIMEDOUT) {
        c->maybe_done = true;
        c->ask_first = c->body_bytes > 65536; /* it may have been a refusal that the reset destroyed */
        return LATER;
    }
    if (*e == EMSGSIZE && c->ranged)
        snprintf(c->response.error, sizeof c->response.error, "more than the range that was asked for");
    if (*e) {
        if (*e != ECANCELED && *e != ENOMEM) *e = EIO;
        return FAILED;
    }
    if (status / 100 == 2 && !*c->error.code) return DONE;
    if (status == 416 && c->ranged) return DONE;
    return judge_refusal(s, c, e);
}

/* --- waiting --- */

static double uniform(void) {
    uint32_t r;
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != sizeof r) r = (uint32_t)(int64_t)(clt_now() * 1e9);
    return r / 4294967296.0;
}

static double wait_before(const clt_s3_call *c, int failures) {
    const char *asked = c->response.retry_after;
    double seconds;
    if (*asked) {
        if (!clt_parse_f64(asked, &seconds)) {
            double at = clt_http_date(asked), now = clt_http_date(c->response.date);
            seconds = at > 0 ? at - (now > 0 ? now : clt_wall()) : 0;
        }
        if (seconds > 0) return CLT_MIN(seconds, longest_asked);
    }
    return CLT_MIN(first_wait * ldexp(1, CLT_MIN(failures, 16)), longest_wait) * uniform();
}

static void add_waited(double seconds) {
    double before = totals.waited;
    while (!atomic_compare_exchange_weak(&totals.waited, &before, before + seconds)) {
    }
}

/* false: the call is to end. */
static bool wait_for(clt_s3 *s, double seconds) {
    const double until = clt_now() + seconds;
    add_waited(seconds);
    for (double left; (left = until - clt_now()) > 0;) {
        if (s->cancelled || clt_io_stop_requested()) return false;
        clt_sleep(CLT_MIN(left, 0.2));
    }
    return !s->cancelled && !clt_io_stop_requested();
}

static void warn(clt_s3 *s, const clt_s3_call *c, int e, double begun, double deadline) {
    const double now = clt_now();
    if (now - begun < warn_after || now - s->warned < warn_every) return;
    s->warned = now;
    clt_str b = {0};
    say_reason(&b, c, e);
    hide_controls(b.s);
    clt_warn("s3://%s: %s; repeated for up to %.0f s", c->bucket, b.s, deadline - now);
    clt_str_free(&b);
}

/* --- the call --- */

static _Thread_local double limit;

double clt_s3_limit(double seconds) {
    double before = limit;
    limit = seconds;
    return before;
}

/* What a broken body has brought is kept. Returns whether there was any. */
static bool keep_progress(clt_s3_call *c) {
    const clt_http_response *r = &c->response;
    unsigned long long from;
    bool asked =
        r->status == 206 && sscanf(r->range, "bytes %llu-", &from) == 1 && from == c->offset + c->got;
    if (!c->ranged || !r->bytes || !(asked || (r->status == 200 && c->offset + c->got == 0))) return false;
    c->got += r->bytes;
    if (!*c->etag) memcpy(c->etag, r->etag, sizeof c->etag);
    return true;
}

static bool is_name(const clt_s3_call *c) {
    if (!*c->bucket || strlen(c->bucket) > 255 || strpbrk(c->bucket, "/?#@:%\\ ") || *c->bucket == '.')
        return false;
    for (const char *b = c->bucket; *b; b++)
        if ((unsigned char)*b <= ' ' || (unsigned char)*b >= 127) return false;
    return true;
}

int clt_s3_call_run(clt_s3 *s, clt_s3_call *c) {
    const double begun = clt_now(), end = clt_io_deadline();
    double deadline = begun + (limit > 0 ? limit : s->seconds);
    if (end > 0) deadline = CLT_MIN(deadline, end);
    int failures = 0;
    clt_s3_forget();
    if (!is_name(c)) return clt_s3_fail(EINVAL, "'%s' is no name of a bucket", c->bucket);
    clt_sha256_hex(c->body ? c->body : "", c->body_bytes, c->sha256);
    for (;;) {
        if (s->cancelled) return clt_s3_fail(ECANCELED, "cancelled");
        c->attempts++;
        int e = attempt(s, c, deadline - clt_now());
        verdict v = judge(s, c, &e);
        if (v == DONE) return 0;
        if (v == FAILED) return report(c, e);
        if (keep_progress(c)) failures = 0;
        if (c->ranged && c->got == c->want) return 0;
        double wait = v == AT_ONCE ? 0 : wait_before(c, failures++), now = clt_now();
        bool never = !s->responded && now + wait - begun > first_contact;
        if (now + wait >= deadline || never) return report(c, never ? e : ETIMEDOUT);
        totals.retries++;
        warn(s, c, e, begun, s->responded ? deadline : CLT_MIN(deadline, begun + first_contact));
        if (!wait_for(s, wait)) return report(c, ECANCELED);
    }
}
