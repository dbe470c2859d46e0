/* Locks: leases, see "locks" in clt_io.h. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_json.h"
#include "runtime/base/clt_thread.h"
#include "runtime/object/clt_io_s3_internal.h"
#include "runtime/object/clt_s3_internal.h"

enum { LEASE_SECONDS = 60, MAX_LEASE = 3600, MAX_OBJECT = 4096 };

/* Parts of a lease's duration: when it is renewed, when that is tried again after a failure, how long one
 * request may take. The holder counts the lease as expired by `margin` before others may take over, and they
 * wait by as much longer: requests take time, and the clocks of a store's hosts differ a little. */
static const double renewing = 1.0 / 4, again = 1.0 / 30, asking = 1.0 / 6, margin = 1.0 / 12;

typedef struct {
    clt_s3_place place;
    char token[33];
    pthread_mutex_t lock; /* for what follows; also held during requests */
    char owner[CLT_IO_OWNER_BYTES];
    char etag[256];
    int seconds;          /* its duration */
    pthread_mutex_t wait; /* for `stop` */
    pthread_cond_t wake;
    bool stop;
    pthread_t thread;
    _Atomic double renewed; /* when the last successful request began, boot clock */
    atomic_bool lost;       /* somebody else took it over, or removed it: it does not come back */
} lease;

/* The duration of new leases. */
static int duration(void) {
    const long seconds = clt_env_long(CLT_ENV_S3_LEASE, LEASE_SECONDS);
    return seconds >= 1 && seconds <= MAX_LEASE ? (int)seconds : LEASE_SECONDS;
}

/* Goes on while the machine sleeps. */
static double boot_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- the object --- */

/* What a lease object says. */
typedef struct {
    char owner[CLT_IO_OWNER_BYTES], token[33];
    double seconds; /* 0: the lock is free */
} lease_text;

static char *write_lease(const lease *l, int seconds) {
    char *owner;
    clt_str b = {0};
    clt_error_quiet(true);
    if (clt_json_quote(l->owner, strlen(l->owner), "owner", &owner) != CLT_OK) owner = clt_strdup("\"\"");
    clt_error_quiet(false);
    clt_str_addf(&b, "{\"owner\": %s, \"token\": \"%s\", \"expires_in\": %d}\n", owner, l->token, seconds);
    clt_free(owner);
    return b.s;
}

static void copy_line(char *to, size_t cap, const json_t *text) {
    snprintf(to, cap, "%s", json_is_string(text) ? json_string_value(text) : "");
    for (char *s = to; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127) *s = '?';
}

/* Anything may be there: what is no lease counts as one of an unknown owner. */
static void read_lease(const char *text, size_t bytes, lease_text *out) {
    json_t *o = NULL;
    *out = (lease_text){.seconds = LEASE_SECONDS};
    clt_error_quiet(true);
    if (clt_json_parse(text, bytes, 4, "lease", &o) == CLT_OK) {
        const json_t *seconds = json_object_get(o, "expires_in");
        copy_line(out->owner, sizeof out->owner, json_object_get(o, "owner"));
        copy_line(out->token, sizeof out->token, json_object_get(o, "token"));
        if (json_is_number(seconds)) out->seconds = json_number_value(seconds);
        if (!(out->seconds >= 0 && out->seconds <= MAX_LEASE)) out->seconds = LEASE_SECONDS;
        json_decref(o);
    }
    clt_error_quiet(false);
}

static int get_lease(const clt_s3_place *p, lease_text *out, clt_s3_info *info) {
    char text[MAX_OBJECT];
    size_t got;
    int e = clt_s3_get(p->store, p->bucket, p->key, NULL, text, sizeof text, 0, &got, info);
    if (!e) read_lease(text, got, out);
    return e;
}

/* Puts the lease. Lock held, or nobody else knows l. */
static int put_lease(lease *l, int seconds, clt_s3_condition condition) {
    char *text = write_lease(l, seconds);
    double before = clt_s3_limit(l->seconds * asking), at = boot_clock();
    int e = clt_s3_put(l->place.store, l->place.bucket, l->place.key, text, strlen(text), condition, l->etag);
    clt_s3_limit(before);
    if (!e) l->renewed = at;
    clt_free(text);
    return e;
}

/* After a condition did not hold: whether the object is this lease all the same, because a request that
 * reached its deadline has changed it: then it holds this lease's token, and l->etag is its ETag now. 0,
 * ESTALE: it is somebody else's or gone; other values: unknown. */
static int look_again(lease *l) {
    lease_text found;
    clt_s3_info info;
    double before = clt_s3_limit(l->seconds * asking);
    int e = get_lease(&l->place, &found, &info);
    clt_s3_limit(before);
    if (e == ENOENT || (!e && strcmp(found.token, l->token) != 0)) return ESTALE;
    if (!e) memcpy(l->etag, info.etag, sizeof l->etag);
    return e;
}

/* Replaces the own lease, also one that has expired: whoever takes a lease over writes a token of his own, so
 * an object with this token proves that nobody held it meanwhile. EBUSY: requests that had reached their
 * deadline still change it. */
static int replace_lease(lease *l, int seconds) {
    enum { LOOKS = 3 };
    int e = l->lost ? ESTALE : put_lease(l, seconds, CLT_S3_IF_MATCH);
    for (int i = 0; e == ESTALE && !l->lost && i < LOOKS; i++) {
        e = look_again(l);
        l->lost = e == ESTALE;
        if (!e) e = put_lease(l, seconds, CLT_S3_IF_MATCH);
    }
    return e == ESTALE && !l->lost ? EBUSY : e;
}

/* --- renewing --- */

/* false: the lease is to end. */
static bool wait_to_renew(lease *l, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const double end = (double)until.tv_sec + (double)until.tv_nsec * 1e-9 + seconds;
    until.tv_sec = (time_t)end;
    until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
    pthread_mutex_lock(&l->wait);
    while (!l->stop && pthread_cond_timedwait(&l->wake, &l->wait, &until) == 0) {
    }
    bool go_on = !l->stop;
    pthread_mutex_unlock(&l->wait);
    return go_on;
}

/* Goes on after the lease has expired: a store that was away for longer is no reason to give it up. */
static void *renew(void *arg) {
    lease *l = arg;
    for (int e = 0; wait_to_renew(l, l->seconds * (e ? again : renewing)) && !l->lost;) {
        pthread_mutex_lock(&l->lock);
        e = replace_lease(l, l->seconds);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

bool clt_io_s3_is_held(clt_io_component *c, void *lock) {
    (void)c;
    const lease *l = lock;
    return !l->lost && boot_clock() - l->renewed <= l->seconds * (1 - margin);
}

static void free_lease(lease *l) {
    clt_s3_place_free(&l->place);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->wait);
    pthread_cond_destroy(&l->wake);
    clt_free(l);
}

static lease *new_lease(clt_s3_place *p, const char *owner) {
    lease *l = clt_calloc(1, sizeof *l);
    pthread_condattr_t monotonic;
    l->place = *p;
    *p = (clt_s3_place){0};
    l->seconds = duration();
    clt_s3_writer(l->token);
    snprintf(l->owner, CLT_IO_OWNER_BYTES - 1, "%s", owner);
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->wait, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return l;
}

/* --- taking and releasing --- */

/* EEXIST: somebody has a lease there, or had. Takes it over if it expired. */
static int take_over(lease *l, char holder[CLT_IO_OWNER_BYTES]) {
    lease_text found;
    clt_s3_info info;
    int e = get_lease(&l->place, &found, &info);
    if (e == ENOENT) return EWOULDBLOCK; /* the next attempt may have it */
    if (e) return e;
    double now = info.now > 0 ? info.now : clt_s3_time(l->place.store);
    bool expired = info.modified > 0 && now - info.modified > found.seconds * (1 + margin);
    if (found.seconds > 0 && !expired) {
        snprintf(holder, CLT_IO_OWNER_BYTES, "%s", found.owner);
        return EWOULDBLOCK;
    }
    memcpy(l->etag, info.etag, sizeof l->etag);
    e = put_lease(l, l->seconds, CLT_S3_IF_MATCH);
    return e == ESTALE ? EWOULDBLOCK : e;
}

int clt_io_s3_lock(clt_io_component *c, const char *path, const char *owner, void **lock,
                   char holder[CLT_IO_OWNER_BYTES]) {
    clt_s3_place p;
    *holder = 0;
    int e = clt_s3_place_of(c, path, &p);
    if (!e && !*p.key) e = EISDIR;
    if (e) {
        clt_s3_place_free(&p);
        return e;
    }
    lease *l = new_lease(&p, owner);
    e = put_lease(l, l->seconds, CLT_S3_IF_ABSENT);
    if (e == EEXIST) e = take_over(l, holder);
    if (!e && (e = clt_thread_start(&l->thread, renew, l)) != 0) put_lease(l, 0, CLT_S3_IF_MATCH);
    if (e)
        free_lease(l);
    else
        *lock = l;
    return e;
}

int clt_io_s3_sign(clt_io_component *c, void *lock, const char *owner) {
    (void)c;
    lease *l = lock;
    pthread_mutex_lock(&l->lock);
    snprintf(l->owner, CLT_IO_OWNER_BYTES - 1, "%s", owner);
    int e = replace_lease(l, l->seconds);
    pthread_mutex_unlock(&l->lock);
    return e;
}

/* The object stays and says that the lock is free: deleting it could remove the lease of somebody who took it
 * over, as not every store deletes on a condition. */
void clt_io_s3_unlock(clt_io_component *c, void *lock) {
    (void)c;
    lease *l = lock;
    pthread_mutex_lock(&l->wait);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->wait);
    pthread_join(l->thread, NULL);
    *l->owner = 0;
    replace_lease(l, 0);
    free_lease(l);
}
