#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <pthread.h>
#include <string.h>

#include "runtime/base/clt_thread.h"

typedef struct {
    float *data;
    size_t count;
    bool from_pipe;
} job;

struct clt_pipe {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* any of the fields below */
    pthread_t *thread;
    int threads;
    bool stop;
    clt_chunk_codec **codec; /* one per thread; at least one, for the calling thread */
    int codecs;

    float **buffer; /* all */
    float **free_buffer;
    int buffers, free_buffers;

    /* the file in progress */
    char *path;
    clt_file *file;
    bool ordered; /* the storage takes a file from its beginning to its end, and shows it when it is closed */
    clt_ckpt_stored *row;
    job *jobs;
    size_t total, submitted, taken, placed, written, done;
    uint64_t end; /* bytes assigned to chunks */
    clt_status status;
    bool finished;
};

/* --- one chunk --- */

/* The place of chunk i: right after chunk i - 1, so that equal states make equal files. Called for every
 * chunk, also after a failure, or the next one would wait for ever. */
static uint64_t take_place(clt_pipe *p, size_t i, uint64_t bytes) {
    pthread_mutex_lock(&p->lock);
    while (p->placed != i) pthread_cond_wait(&p->changed, &p->lock);
    uint64_t at = p->end;
    p->end += bytes;
    p->placed++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return at;
}

/* Called with the lock held; returns with it held. */
static void fail(clt_pipe *p, clt_status st) {
    if (p->status == CLT_OK) p->status = st;
}

/* Every chunk has its turn to write, also after a failure, which it gets. */
static clt_status wait_for_turn(clt_pipe *p, size_t i) {
    pthread_mutex_lock(&p->lock);
    while (p->written != i) pthread_cond_wait(&p->changed, &p->lock);
    clt_status st = p->status;
    pthread_mutex_unlock(&p->lock);
    return st;
}

static void end_turn(clt_pipe *p, clt_status st) {
    pthread_mutex_lock(&p->lock);
    if (st != CLT_OK) fail(p, st);
    p->written++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static clt_status write_chunk(clt_pipe *p, size_t i, clt_chunk_codec *codec, bool skip) {
    clt_ckpt_stored *row = &p->row[i];
    clt_status st = skip ? CLT_FAIL : clt_chunk_encode(codec, p->jobs[i].data, p->jobs[i].count, row);
    row->offset = take_place(p, i, st == CLT_OK ? row->stored : 0);
    if (p->ordered) {
        const clt_status before = wait_for_turn(p, i);
        if (st == CLT_OK) st = before;
        if (st == CLT_OK && i == 0) st = clt_file_open(p->path, CLT_IO_CREATE_NEW, &p->file);
    }
    if (st == CLT_OK) st = clt_file_pwrite(p->file, clt_chunk_codec_buffer(codec), row->stored, row->offset);
    if (p->ordered) end_turn(p, st);
    return st;
}

/* What the disk returns has to be what was hashed: a checkpoint that cannot be read must not replace one that
 * can. */
static clt_status read_back(clt_pipe *p, clt_file *f, clt_chunk_codec *codec) {
    for (size_t i = 0; i < p->total; i++) {
        const clt_ckpt_stored *row = &p->row[i];
        void *raw = clt_chunk_codec_buffer(codec);
        CLT_TRY(clt_file_pread(f, raw, row->stored, row->offset));
        clt_hash128 h = clt_hash(raw, row->stored);
        if (h.hi != row->hash.hi || h.lo != row->hash.lo)
            return clt_error(CLT_IO, "%s: bytes [%llu, +%llu) read back differently from what was written",
                             p->path, (unsigned long long)row->offset, (unsigned long long)row->stored);
    }
    return CLT_OK;
}

/* An object store has compared what it stored with the hash that came with each request. */
static clt_status check_size(const clt_pipe *p) {
    clt_io_info info;
    CLT_TRY(clt_io_stat(p->path, &info));
    if (info.kind == CLT_IO_FILE && info.bytes == p->end) return CLT_OK;
    return clt_error(CLT_IO, "%s has %llu bytes, %llu were written", p->path, (unsigned long long)info.bytes,
                     (unsigned long long)p->end);
}

/* After the last chunk: durable, checked, closed. What is incomplete never gets a name where the storage can
 * withhold it. */
static clt_status close_file(clt_pipe *p, clt_chunk_codec *codec) {
    clt_status st = p->status;
    clt_file *f = p->file;
    p->file = NULL;
    if (st == CLT_OK) st = clt_file_datasync(f);
    if (st == CLT_OK && !p->ordered) st = read_back(p, f, codec);
    if (st != CLT_OK) {
        clt_file_abandon(f);
        return st;
    }
    CLT_TRY(clt_file_close(f));
    return p->ordered ? check_size(p) : CLT_OK;
}

static void end_if_done(clt_pipe *p, clt_chunk_codec *codec) {
    if (p->finished || p->done != p->total) return;
    pthread_mutex_unlock(&p->lock);
    clt_status st = close_file(p, codec);
    pthread_mutex_lock(&p->lock);
    fail(p, st);
    p->finished = true;
    pthread_cond_broadcast(&p->changed);
}

static void run_job(clt_pipe *p, clt_chunk_codec *codec) {
    size_t i = p->taken++;
    bool skip = p->status != CLT_OK;
    pthread_mutex_unlock(&p->lock);
    clt_status st = write_chunk(p, i, codec, skip);
    pthread_mutex_lock(&p->lock);
    if (st != CLT_OK) fail(p, st);
    if (p->jobs[i].from_pipe) p->free_buffer[p->free_buffers++] = p->jobs[i].data;
    p->done++;
    pthread_cond_broadcast(&p->changed);
    end_if_done(p, codec);
}

/* --- threads --- */

typedef struct {
    clt_pipe *pipe;
    int index;
} worker_arg;

static void *worker(void *arg) {
    worker_arg a = *(worker_arg *)arg;
    clt_free(arg);
    clt_pipe *p = a.pipe;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->taken == p->submitted) pthread_cond_wait(&p->changed, &p->lock);
        if (p->taken == p->submitted) break; /* stop, and the queue is empty */
        run_job(p, p->codec[a.index]);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void start_threads(clt_pipe *p, int threads) {
    for (; p->threads < threads; p->threads++) {
        worker_arg *a = clt_malloc(sizeof *a);
        *a = (worker_arg){p, p->threads};
        if (clt_thread_start(&p->thread[p->threads], worker, a) != 0) {
            clt_free(a); /* fewer threads, or none, write the same file */
            break;
        }
    }
}

static clt_status allocate(clt_pipe *p, size_t chunks, size_t count) {
    p->jobs = clt_try_calloc(chunks, sizeof *p->jobs);
    if (!p->jobs) return clt_no_memory("the list of a checkpoint's chunks", chunks * sizeof *p->jobs);
    for (int i = 0; i < p->codecs; i++) CLT_TRY(clt_chunk_codec_create(count, &p->codec[i]));
    for (int i = 0; i < p->buffers; i++) {
        p->buffer[i] = clt_try_aligned_alloc(count * sizeof(float));
        if (!p->buffer[i]) return clt_no_memory("a buffer of the checkpoint writer", count * sizeof(float));
    }
    return CLT_OK;
}

clt_status clt_pipe_create(int threads, int buffers, size_t chunks, size_t count, clt_pipe **out) {
    clt_pipe *p = clt_calloc(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->codecs = CLT_MAX(threads, 1);
    p->codec = clt_calloc((size_t)p->codecs, sizeof *p->codec);
    p->buffer = clt_calloc((size_t)buffers, sizeof *p->buffer);
    p->free_buffer = clt_calloc((size_t)buffers, sizeof *p->free_buffer);
    p->buffers = buffers;
    p->finished = true;
    p->thread = clt_calloc((size_t)p->codecs, sizeof *p->thread);
    clt_status st = allocate(p, chunks, count);
    if (st != CLT_OK) {
        clt_pipe_destroy(p);
        return st;
    }
    start_threads(p, threads);
    *out = p;
    return CLT_OK;
}

void clt_pipe_destroy(clt_pipe *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    fail(p, CLT_FAIL); /* what is queued is dropped */
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++) pthread_join(p->thread[i], NULL);
    clt_file_abandon(p->file);
    for (int i = 0; i < p->buffers; i++) clt_free(p->buffer[i]);
    for (int i = 0; i < p->codecs; i++) clt_chunk_codec_destroy(p->codec[i]);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    clt_free(p->buffer);
    clt_free(p->free_buffer);
    clt_free(p->codec);
    clt_free(p->thread);
    clt_free(p->jobs);
    clt_free(p->path);
    clt_free(p);
}

/* --- the producer's side --- */

void clt_pipe_start(clt_pipe *p, const char *path, size_t chunks, clt_ckpt_stored *rows) {
    pthread_mutex_lock(&p->lock);
    clt_free(p->path);
    p->path = clt_strdup(path);
    p->row = rows;
    p->total = chunks;
    p->submitted = p->taken = p->placed = p->written = p->done = 0;
    p->ordered = !clt_io_can(path, CLT_IO_CAN_WRITE_RANGES);
    p->end = 0;
    p->status = CLT_OK;
    p->finished = chunks == 0;
    if (p->buffers) memcpy(p->free_buffer, p->buffer, (size_t)p->buffers * sizeof *p->buffer);
    p->free_buffers = p->buffers;
    /* A remote file is opened by the thread that writes its first chunk. */
    if (chunks && !p->ordered) p->status = clt_file_open(path, CLT_IO_CREATE_NEW, &p->file);
    pthread_mutex_unlock(&p->lock);
}

float *clt_pipe_buffer(clt_pipe *p) {
    pthread_mutex_lock(&p->lock);
    while (p->free_buffers == 0 && p->status == CLT_OK) pthread_cond_wait(&p->changed, &p->lock);
    float *b = p->status == CLT_OK ? p->free_buffer[--p->free_buffers] : NULL;
    pthread_mutex_unlock(&p->lock);
    return b;
}

void clt_pipe_submit(clt_pipe *p, float *data, size_t count, bool from_pipe) {
    pthread_mutex_lock(&p->lock);
    p->jobs[p->submitted++] = (job){data, count, from_pipe};
    if (p->threads)
        pthread_cond_broadcast(&p->changed);
    else
        run_job(p, p->codec[0]);
    pthread_mutex_unlock(&p->lock);
}

void clt_pipe_cancel(clt_pipe *p, clt_status st) {
    pthread_mutex_lock(&p->lock);
    fail(p, st);
    p->total = p->submitted;
    end_if_done(p, p->codec[0]);
    pthread_mutex_unlock(&p->lock);
}

bool clt_pipe_ready(clt_pipe *p) {
    pthread_mutex_lock(&p->lock);
    bool ready = p->finished;
    pthread_mutex_unlock(&p->lock);
    return ready;
}

clt_status clt_pipe_finish(clt_pipe *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->finished) pthread_cond_wait(&p->changed, &p->lock);
    clt_status st = p->status;
    pthread_mutex_unlock(&p->lock);
    return st;
}
