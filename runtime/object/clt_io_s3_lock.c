/* Locks: leases, see "locks" in clt_io.h. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_json.h"
#include "runtime/base/clt_thread.h"
#include "runtime/object/clt_io_s3_internal.h"
#include "runtime/object/clt_s3_internal.h"

enum {
    LEASE_SECONDS = 60,
    RENEW_SECONDS = 15,
    AGAIN_SECONDS = 2,
    CALL_SECONDS = 10,
    MAX_LEASE = 3600,
    MAX_OBJECT = 4096
};
/* The holder gives up this much earlier than others may take over, and they wait this much longer: requests
 * take time, and the clocks of a store's hosts differ a little. */
static const double margin = 5;

typedef struct {
    clt_s3_place place;
    char token[33];
    pthread_mutex_t lock; /* for what follows; also held during requests */
    char owner[CLT_IO_OWNER_BYTES];
    char etag[256];
    bool lost;
    pthread_mutex_t wait; /* for `stop` */
    pthread_cond_t wake;
    bool stop;
    pthread_t thread;
    _Atomic double renewed; /* when the last successful request began, boot clock */
    atomic_bool gone;       /* `lost`, for who must not wait for a request */
} lease;

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
    double before = clt_s3_limit(CALL_SECONDS), at = boot_clock();
    int e = clt_s3_put(l->place.store, l->place.bucket, l->place.key, text, strlen(text), condition, l->etag);
    clt_s3_limit(before);
    if (!e) l->renewed = at;
    clt_free(text);
    return e;
}

/* Replaces the own lease. A request that reached its deadline may have changed the object all the same: then
 * it holds this lease's token, and another ETag. */
static int replace_lease(lease *l, int seconds) {
    if (l->lost) return ESTALE;
    lease_text found;
    clt_s3_info info;
    int e = put_lease(l, seconds, CLT_S3_IF_MATCH);
    if (e == ESTALE && !get_lease(&l->place, &found, &info) && !strcmp(found.token, l->token)) {
        memcpy(l->etag, info.etag, sizeof l->etag);
        e = put_lease(l, seconds, CLT_S3_IF_MATCH);
    }
    if (e == ESTALE) {
        l->lost = true;
        l->gone = true;
    }
    return e;
}

/* --- renewing --- */

/* false: the lease is to end. */
static bool wait_to_renew(lease *l, int seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&l->wait);
    while (!l->stop && pthread_cond_timedwait(&l->wake, &l->wait, &until) == 0) {
    }
    bool go_on = !l->stop;
    pthread_mutex_unlock(&l->wait);
    return go_on;
}

static void *renew(void *arg) {
    lease *l = arg;
    for (int e = 0; wait_to_renew(l, e ? AGAIN_SECONDS : RENEW_SECONDS) && !l->gone;) {
        pthread_mutex_lock(&l->lock);
        e = replace_lease(l, LEASE_SECONDS);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

bool clt_io_s3_is_held(clt_io_component *c, void *lock) {
    (void)c;
    lease *l = lock;
    if (boot_clock() - l->renewed > LEASE_SECONDS - margin) l->gone = true; /* and stays so */
    return !l->gone;
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
    bool expired = info.modified > 0 && now - info.modified > found.seconds + margin;
    if (found.seconds > 0 && !expired) {
        snprintf(holder, CLT_IO_OWNER_BYTES, "%s", found.owner);
        return EWOULDBLOCK;
    }
    memcpy(l->etag, info.etag, sizeof l->etag);
    e = put_lease(l, LEASE_SECONDS, CLT_S3_IF_MATCH);
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
    e = put_lease(l, LEASE_SECONDS, CLT_S3_IF_ABSENT);
    if (e == EEXIST) e = take_over(l, holder);
    if (!e && (e = clt_thread_start(&l->thread, renew, l)) != 0) put_lease(l, 0, CLT_S3_IF_MATCH);
    if (e)
        free_lease(l);
    else
        *lock = l;
    return e;
}

int clt_io_s3_sign(clt_io_component *c, void *lock, const char *owner) {
    lease *l = lock;
    pthread_mutex_lock(&l->lock);
    snprintf(l->owner, CLT_IO_OWNER_BYTES - 1, "%s", owner);
    int e = clt_io_s3_is_held(c, lock) ? replace_lease(l, LEASE_SECONDS) : ESTALE;
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
