/* Reading chunks ahead. Threads take spans of the list in its order: neighbours in one data file, read with
 * one request. Decoded spans wait in a ring of slots until they are taken, also in order. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_thread.h"
#include "runtime/checkpoint/clt_ckpt_internal.h"

enum {
    REMOTE_THREADS = 8, /* each waits for the storage most of the time */
    LOCAL_THREADS = 4,
    SPARE_SLOTS = 4,           /* decoded and not yet taken while every thread has one in work */
    SPAN = 2 * CLT_CKPT_CHUNK, /* elements */
    FILES = 16                 /* open at once */
};

typedef enum { EMPTY, BUSY, READY } slot_state;

typedef struct {
    slot_state state;
    size_t first, n; /* list[first], ... */
    size_t good;     /* so many of its chunks are decoded; those after them were not read, or are damaged */
    clt_status st;   /* not CLT_OK: reading failed, `why` says how */
    bool unopened;   /* because its file cannot be opened */
    char *why;
    float *data; /* [SPAN] */
} slot;

typedef struct {
    clt_file *file; /* NULL: being opened */
    uint32_t index;
    int users;
    uint64_t used; /* when, as a number of spans */
} open_file;

struct clt_ahead {
    const char *path;
    const clt_manifest *m;
    size_t *list, n;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    size_t next;           /* list position from which the next span begins */
    uint64_t begun, taken; /* spans; the slot of span k is k modulo `slots` */
    slot *slot;
    int slots;
    open_file file[FILES];
    pthread_t thread[REMOTE_THREADS];
    int threads;
    atomic_bool stop;

    size_t at; /* the consumer's position in the list */
};

/* One at a time: what the header promises about memory is for the process. */
static atomic_flag in_use = ATOMIC_FLAG_INIT;

/* --- files --- */

static void close_idle(clt_ahead *a, int i) {
    clt_file *f = a->file[i].file;
    a->file[i] = (open_file){0};
    clt_file_close(f);
}

/* An entry for file `index`: the one that has it, else a free one, else the one that was idle for longest.
 * -1: all are in use. Lock held. */
static int find_entry(clt_ahead *a, uint32_t index) {
    int best = -1;
    for (int i = 0; i < FILES; i++) {
        const open_file *f = &a->file[i];
        const bool there = f->file || f->users;
        if (there && f->index == index) return i;
        if (f->users) continue;
        if (best < 0 || (a->file[best].file && (!there || f->used < a->file[best].used))) best = i;
    }
    return best;
}

/* The entry of a file that is open now, in *entry. Lock held. */
static clt_status use_file(clt_ahead *a, uint32_t index, int *entry) {
    int i;
    while ((i = find_entry(a, index)) < 0 ||
           (a->file[i].users && !a->file[i].file && a->file[i].index == index))
        pthread_cond_wait(&a->changed,
                          &a->lock); /* the thread that opens it, or one that has another, signals */
    open_file *f = &a->file[i];
    *entry = i;
    if (f->file && f->index != index) close_idle(a, i);
    f->used = a->begun;
    f->users++;
    if (f->file) return CLT_OK;
    f->index = index;
    pthread_mutex_unlock(&a->lock);
    char *path = clt_path_join(a->path, a->m->file[index].name);
    clt_file *file = NULL;
    clt_status st = clt_file_open(path, CLT_IO_READ_PLAIN, &file);
    clt_free(path);
    pthread_mutex_lock(&a->lock);
    if (st == CLT_OK)
        f->file = file;
    else
        *f = (open_file){0};
    pthread_cond_broadcast(&a->changed);
    return st;
}

/* --- threads --- */

/* The chunks of the next span: neighbours in one file, so that one read has them all. */
static size_t span_at(const clt_ahead *a, size_t first) {
    const clt_man_chunk *c = &a->m->chunk[a->list[first]];
    size_t n = 1, elements = c->count, bytes = c->at.stored;
    for (; first + n < a->n; n++) {
        const clt_man_chunk *d = &a->m->chunk[a->list[first + n]];
        if (d->file != c->file || d->at.offset != c->at.offset + bytes || elements + d->count > SPAN ||
            bytes + d->at.stored > clt_chunk_stored_bound(SPAN))
            break;
        elements += d->count;
        bytes += d->at.stored;
    }
    return n;
}

static void decode_span(const clt_ahead *a, slot *s, clt_chunk_codec *codec) {
    const char *raw = clt_chunk_codec_buffer(codec);
    float *to = s->data;
    for (size_t i = 0; i < s->n; i++) {
        const clt_man_chunk *c = &a->m->chunk[a->list[s->first + i]];
        const char *why;
        if (clt_chunk_decode_at(codec, raw, &c->at, to, c->count, &why) != CLT_OK) return;
        raw += c->at.stored;
        to += c->count;
        s->good++;
    }
}

/* Lock not held. The failure's text is kept for the consumer. */
static void read_span(clt_ahead *a, slot *s, clt_chunk_codec *codec) {
    const clt_man_chunk *first = &a->m->chunk[a->list[s->first]];
    const clt_man_chunk *last = &a->m->chunk[a->list[s->first + s->n - 1]];
    const size_t bytes = (size_t)(last->at.offset + last->at.stored - first->at.offset);
    int entry;
    clt_error_quiet(true);
    pthread_mutex_lock(&a->lock);
    s->st = use_file(a, first->file, &entry);
    pthread_mutex_unlock(&a->lock);
    s->unopened = s->st != CLT_OK;
    if (!s->unopened) {
        s->st = clt_file_pread(a->file[entry].file, clt_chunk_codec_buffer(codec), bytes, first->at.offset);
        pthread_mutex_lock(&a->lock);
        a->file[entry].users--;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
    }
    if (s->st == CLT_OK)
        decode_span(a, s, codec);
    else
        s->why = clt_strdup(clt_last_error());
    clt_error_quiet(false);
}

/* Lock held. NULL: no more spans. */
static slot *begin_span(clt_ahead *a) {
    while (!a->stop && a->next < a->n && a->begun - a->taken >= (uint64_t)a->slots)
        pthread_cond_wait(&a->changed, &a->lock);
    if (a->stop || a->next == a->n) return NULL;
    slot *s = &a->slot[a->begun++ % (uint64_t)a->slots];
    *s = (slot){.state = BUSY, .first = a->next, .n = span_at(a, a->next), .data = s->data};
    a->next += s->n;
    return s;
}

static void *work(void *arg) {
    clt_ahead *a = arg;
    clt_chunk_codec *codec = NULL;
    clt_error_quiet(true);
    (void)clt_chunk_codec_create(SPAN, &codec);
    clt_error_quiet(false);
    clt_io_heed_flag(&a->stop);
    pthread_mutex_lock(&a->lock);
    for (slot *s; (s = begin_span(a));) {
        pthread_mutex_unlock(&a->lock);
        if (codec) read_span(a, s, codec); /* without memory nothing is good: the consumer reads */
        pthread_mutex_lock(&a->lock);
        s->state = READY;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    clt_io_heed_flag(NULL);
    clt_chunk_codec_destroy(codec);
    return NULL;
}

/* --- the consumer --- */

static int thread_count(const char *path) {
    if (!clt_io_can(path, CLT_IO_HAS_FOLDERS)) return REMOTE_THREADS;
    return CLT_MIN(clt_cpu_count(), LOCAL_THREADS);
}

static bool allocate(clt_ahead *a, int threads) {
    a->slots = threads + SPARE_SLOTS;
    a->slot = clt_try_calloc((size_t)a->slots, sizeof *a->slot);
    for (int i = 0; a->slot && i < a->slots; i++) {
        a->slot[i].data = clt_try_aligned_alloc(SPAN * sizeof(float));
        if (!a->slot[i].data) return false;
    }
    return a->slot != NULL;
}

static uint64_t elements_of(const clt_manifest *m, const size_t *list, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += m->chunk[list[i]].count;
    return sum;
}

clt_ahead *clt_ahead_start(const char *path, const clt_manifest *m, size_t *list, size_t n) {
    const uint64_t spans = CLT_CEIL_DIV(elements_of(m, list, n), (uint64_t)SPAN);
    if (spans < 2 || atomic_flag_test_and_set(&in_use)) { /* a few chunks are not worth the threads */
        clt_free(list);
        return NULL;
    }
    clt_ahead *a = clt_calloc(1, sizeof *a);
    *a = (clt_ahead){.path = path, .m = m, .list = list, .n = n};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    const int threads = (int)CLT_MIN((uint64_t)thread_count(path), spans);
    if (allocate(a, threads))
        while (a->threads < threads && clt_thread_start(&a->thread[a->threads], work, a) == 0) a->threads++;
    if (a->threads) return a;
    clt_ahead_stop(a);
    return NULL;
}

void clt_ahead_stop(clt_ahead *a) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->threads; i++) pthread_join(a->thread[i], NULL);
    for (int i = 0; i < FILES; i++)
        if (a->file[i].file) close_idle(a, i);
    for (int i = 0; a->slot && i < a->slots; i++) {
        clt_free(a->slot[i].data);
        clt_free(a->slot[i].why);
    }
    clt_free(a->slot);
    clt_free(a->list);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    clt_free(a);
    atomic_flag_clear(&in_use);
}

/* Waits until the span that is to be taken next is ready; NULL: a request to stop came. Lock held. */
static slot *wait_ready(clt_ahead *a) {
    enum { TENTH = 100 * 1000 * 1000 };
    slot *s = &a->slot[a->taken % (uint64_t)a->slots];
    while (s->state != READY || a->taken == a->begun) {
        if (!clt_io_stop_heeded()) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TENTH;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&a->changed, &a->lock, &until);
        if (clt_io_stop_requested()) return NULL;
    }
    return s;
}

/* The next span may begin in this slot. Lock held. */
static void release(clt_ahead *a, slot *s) {
    clt_free(s->why);
    s->why = NULL;
    s->state = EMPTY;
    a->taken++;
    pthread_cond_broadcast(&a->changed);
}

/* The slot that has list[a->at]; those before it are released. Lock held. */
static slot *slot_of(clt_ahead *a) {
    slot *s;
    while ((s = wait_ready(a)) && a->at >= s->first + s->n) release(a, s);
    return s;
}

clt_ahead_result clt_ahead_take(clt_ahead *a, size_t chunk, const float **data, clt_status *st) {
    while (a->at < a->n && a->list[a->at] != chunk) a->at++;
    if (a->at == a->n) return CLT_AHEAD_ABSENT;
    pthread_mutex_lock(&a->lock);
    const slot *s = slot_of(a);
    pthread_mutex_unlock(&a->lock);
    *st = s ? s->st : CLT_STOPPED;
    if (!s) return CLT_AHEAD_FAILED;
    if (s->st != CLT_OK) {
        if (s->st != CLT_STOPPED) clt_error(s->st, "%s", s->why);
        return s->unopened ? CLT_AHEAD_UNOPENED : CLT_AHEAD_FAILED;
    }
    if (a->at - s->first >= s->good) return CLT_AHEAD_UNREAD;
    const float *from = s->data;
    for (size_t i = s->first; i < a->at; i++) from += a->m->chunk[a->list[i]].count;
    *data = from;
    return CLT_AHEAD_TAKEN;
}
