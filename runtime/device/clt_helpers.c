#include "runtime/device/clt_helpers.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clt_thread.h"
#include "runtime/device/clt_ptx.h"
#include "runtime/device/clt_quiet.h"

#define WORD "--build-helper"
enum { MOST = 16, MOST_BYTES = 256 << 20 };

extern char **environ;

/* A copy of the environment at the start of main; NULL: main did not call clt_device_helper_main. Drivers
 * change the environment: PoCL may set OCL_ICD_FILENAMES to itself when it is loaded, and a process that
 * inherits this finds no other driver. */
static char **clean_environ;

/* --- the protocol --- */

typedef struct {
    clt_hash128 key;
    uint64_t bytes[3]; /* of what, source and options, which follow, each with its 0 */
    uint64_t inline_ptx;
} job_head;

typedef struct {
    uint64_t ok, bytes; /* the binary follows */
} job_reply;

static bool send_all(int fd, const void *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = send(fd, (const char *)data + at, bytes - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = recv(fd, (char *)data + at, bytes - at, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

/* --- the helper's side --- */

/* Receives one program, builds it and sends the answer; false: the socket is closed or broken. A build that
 * takes too long ends the helper by its alarm. */
static bool serve_one(clt_device *dev, int fd) {
    job_head h;
    job_reply r = {0};
    char *text[3] = {NULL, NULL, NULL}, *data = NULL;
    size_t bytes = 0;
    bool ok = receive_all(fd, &h, sizeof h);
    for (int i = 0; ok && i < 3; i++) {
        ok = h.bytes[i] > 0 && h.bytes[i] < MOST_BYTES;
        if (ok) text[i] = clt_try_malloc((size_t)h.bytes[i]);
        ok = ok && text[i] && receive_all(fd, text[i], (size_t)h.bytes[i]) && !text[i][h.bytes[i] - 1];
    }
    if (ok) {
        const clt_program_text t = {text[0], text[1], text[2], h.key};
        dev->facts.inline_ptx = h.inline_ptx != 0;
        alarm((unsigned)CLT_MAX(dev->timeout, 1.0));
        r.ok = clt_program_binary(dev, &t, &data, &bytes) == CLT_OK;
        alarm(0);
        r.bytes = data ? bytes : 0;
        ok = send_all(fd, &r, sizeof r) && send_all(fd, data, (size_t)r.bytes);
    }
    clt_free(data);
    for (int i = 0; i < 3; i++) clt_free(text[i]);
    return ok;
}

/* A helper process. argv: program, WORD, platform, device, id, timeout, cache folder. It ends when the socket
 * is closed. */
static int serve(char **argv) {
    for (int fd = STDERR_FILENO + 1; fd < 1024; fd++) close(fd); /* what drivers left open */
    signal(SIGINT, SIG_IGN);                                     /* from the terminal: the parent decides */
    signal(SIGTERM, SIG_IGN);
    clt_quiet_allow();
    clt_error_quiet(true); /* the parent builds again what fails here, and prints the message */
    clt_device *dev;
    const clt_helpers_params p = {.platform = atoi(argv[2]),
                                  .device = atoi(argv[3]),
                                  .id = argv[4],
                                  .timeout = atof(argv[5]),
                                  .cache_dir = *argv[6] ? argv[6] : NULL};
    alarm((unsigned)CLT_MAX(p.timeout, 1.0)); /* the parent may die before the device is open */
    if (clt_device_open_helper(p.platform, p.device, p.id, p.cache_dir, p.timeout, &dev) != CLT_OK) {
        clt_debug("a helper cannot open device %d:%d: %s", p.platform, p.device, clt_last_error());
        return 1;
    }
    alarm(0);
    while (serve_one(dev, STDIN_FILENO)) {
    }
    /* Without cleaning up: in the driver that can take longer than the work. */
    _exit(0);
}

bool clt_device_helper_main(int argc, char **argv, int *code) {
    if (argc == 7 && !strcmp(argv[1], WORD)) {
        *code = serve(argv);
        return true;
    }
    clt_quiet_allow();
    size_t n = 0;
    while (environ[n]) n++;
    clean_environ = clt_calloc(n + 1, sizeof *clean_environ); /* never freed */
    for (size_t i = 0; i < n; i++) clean_environ[i] = clt_strdup(environ[i]);
    return false;
}

/* --- the pool --- */

typedef enum { WAITING, RUNNING, DONE, LEFT } job_state; /* LEFT: for this process to build */

typedef struct {
    clt_hash128 key;
    char *what, *source, *options, *data;
    size_t bytes;
    long rank; /* larger: the build probably takes longer */
    bool inline_ptx;
    job_state state;
} job;

typedef struct {
    clt_helpers *pool;
    pthread_t thread;
    pid_t pid; /* 0: none */
} helper;

struct clt_helpers {
    clt_helpers_params p;
    char *id, *cache_dir;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job *jobs;
    int n, cap;
    helper helper[MOST];
    int started;
    bool go, quit;
};

clt_helpers *clt_helpers_create(const clt_helpers_params *p) {
    if (!clean_environ || p->most < 1) return NULL;
    clt_helpers *h = clt_calloc(1, sizeof *h);
    pthread_condattr_t monotonic;
    h->p = *p;
    h->p.most = CLT_MIN(p->most, (int)MOST);
    h->id = clt_strdup(p->id);
    h->cache_dir = clt_strdup(p->cache_dir ? p->cache_dir : "");
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return h;
}

/* Starts this program again, with one end of a socket as its standard input. Returns the other end, or -1. */
static int spawn(clt_helpers *h, pid_t *pid) {
    int end[2];
    char platform[16], device[16], timeout[32];
    snprintf(platform, sizeof platform, "%d", h->p.platform);
    snprintf(device, sizeof device, "%d", h->p.device);
    snprintf(timeout, sizeof timeout, "%g", h->p.timeout);
    char *argv[] = {(char *)"cltrain", (char *)WORD, platform, device, h->id, timeout, h->cache_dir, NULL};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end) != 0) return -1;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, end[1], STDIN_FILENO);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (clt_log_get_level() < CLT_LOG_DEBUG)
        posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_t attributes;
    sigset_t none, pipe;
    sigemptyset(&none);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE); /* a run ignores it */
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &pipe);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int e = posix_spawn(pid, "/proc/self/exe", &files, &attributes, argv, clean_environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    close(end[1]);
    if (e == 0) {
        /* The alarm of the helper ends it before that: it covers opening the device, then each program. */
        const struct timeval most = {.tv_sec = 2 * (time_t)CLT_MAX(h->p.timeout, 1.0) + 1};
        setsockopt(end[0], SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        return end[0];
    }
    clt_debug("a helper process cannot be started: %s", strerror(e));
    close(end[0]);
    return -1;
}

/* Waits for the next job; NULL: there will be none. The lock is held. */
static job *next_job(clt_helpers *h) {
    for (;;) {
        job *best = NULL;
        for (int i = 0; h->go && !h->quit && i < h->n; i++)
            if (h->jobs[i].state == WAITING && (!best || h->jobs[i].rank > best->rank)) best = &h->jobs[i];
        if (best || h->go || h->quit) return best;
        pthread_cond_wait(&h->changed, &h->lock);
    }
}

/* Sends a job to a helper and receives the answer; false: the helper is gone, or its answer is invalid. */
static bool exchange(int fd, const job *j, bool *built, char **data, size_t *bytes) {
    const char *const text[] = {j->what, j->source, j->options};
    job_head head = {.key = j->key, .inline_ptx = j->inline_ptx};
    job_reply r;
    for (int i = 0; i < 3; i++) head.bytes[i] = strlen(text[i]) + 1;
    bool ok = send_all(fd, &head, sizeof head);
    for (int i = 0; ok && i < 3; i++) ok = send_all(fd, text[i], (size_t)head.bytes[i]);
    ok = ok && receive_all(fd, &r, sizeof r) && r.bytes < MOST_BYTES;
    if (!ok) return false;
    *built = r.ok;
    *bytes = (size_t)r.bytes;
    *data = r.bytes ? clt_try_calloc(*bytes + 1, 1) : NULL;
    if (r.bytes && !*data) return false;
    if (!*data || receive_all(fd, *data, *bytes)) return true;
    clt_free(*data);
    *data = NULL;
    return false;
}

/* The thread of one helper: starts it, sends it jobs, waits for its end. */
static void *tend(void *p) {
    helper *me = p;
    clt_helpers *h = me->pool;
    pid_t pid = 0;
    const int fd = spawn(h, &pid);
    bool lives = fd >= 0;
    pthread_mutex_lock(&h->lock);
    me->pid = lives ? pid : 0;
    if (lives && h->quit) kill(pid, SIGKILL);
    job *j;
    while (lives && (j = next_job(h)) != NULL) {
        job mine = *j;
        const ptrdiff_t at = j - h->jobs; /* the array may move */
        bool built = false;
        j->state = RUNNING;
        pthread_mutex_unlock(&h->lock);
        lives = exchange(fd, &mine, &built, &mine.data, &mine.bytes);
        pthread_mutex_lock(&h->lock);
        j = &h->jobs[at];
        j->state = lives && built ? DONE : LEFT;
        j->data = mine.data;
        j->bytes = mine.bytes;
        if (!lives && !h->quit) clt_debug("a helper process was lost while it built %s", mine.what);
        pthread_cond_broadcast(&h->changed);
    }
    /* Killed, because it may still be opening the device, and clt_helpers_destroy waits for this thread. */
    if (fd >= 0) close(fd);
    if (me->pid) kill(pid, SIGKILL);
    me->pid = 0;
    const bool lost = fd >= 0 && !lives && !h->quit;
    pthread_mutex_unlock(&h->lock);
    int status = 0;
    if (fd >= 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    if (lost)
        clt_debug("the lost helper ended with %s %d", WIFSIGNALED(status) ? "signal" : "exit code",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return NULL;
}

static void start(clt_helpers *h, int n) {
    while (h->started < CLT_MIN(n, h->p.most)) {
        helper *me = &h->helper[h->started];
        me->pool = h;
        if (clt_thread_start(&me->thread, tend, me) != 0) break;
        h->started++;
    }
}

void clt_helpers_start(clt_helpers *h) {
    start(h, h->p.most);
}

static job *find(clt_helpers *h, clt_hash128 key) {
    for (int i = 0; i < h->n; i++)
        if (h->jobs[i].key.hi == key.hi && h->jobs[i].key.lo == key.lo) return &h->jobs[i];
    return NULL;
}

void clt_helpers_add(clt_helpers *h, const clt_program_text *t, bool inline_ptx) {
    pthread_mutex_lock(&h->lock);
    if (!h->go && !find(h, t->key)) {
        if (h->n == h->cap) {
            h->cap = h->cap ? 2 * h->cap : 64;
            h->jobs = clt_realloc(h->jobs, (size_t)h->cap * sizeof *h->jobs);
        }
        bool first = true;
        for (int i = 0; i < h->n; i++) first = first && strcmp(h->jobs[i].what, t->what) != 0;
        const bool two_passes = inline_ptx && clt_ptx_is_marked(t->source);
        job j = {.key = t->key,
                 .inline_ptx = inline_ptx,
                 .rank = (two_passes ? 2L << 40 : 0) + (first ? 1L << 40 : 0) +
                         ((long)strlen(t->source) << 12) + (long)strlen(t->options)};
        j.what = clt_strdup(t->what);
        j.source = clt_strdup(t->source);
        j.options = clt_strdup(t->options);
        h->jobs[h->n++] = j;
    }
    pthread_mutex_unlock(&h->lock);
}

int clt_helpers_go(clt_helpers *h) {
    pthread_mutex_lock(&h->lock);
    const int n = h->n;
    h->go = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (n > 1) start(h, n - 1); /* this process builds the first program */
    return n;
}

bool clt_helpers_take(clt_helpers *h, clt_hash128 key, char **data, size_t *bytes) {
    if (!h) return false;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += 2 * (time_t)CLT_MAX(h->p.timeout, 1.0) + 2;
    pthread_mutex_lock(&h->lock);
    job *j = find(h, key);
    int e = 0;
    while (j && j->state == RUNNING && e != ETIMEDOUT)
        e = pthread_cond_timedwait(&h->changed, &h->lock, &end);
    const bool done = j && j->state == DONE;
    if (j && j->state == WAITING) j->state = LEFT;
    if (done) {
        *data = j->data;
        *bytes = j->bytes;
        j->data = NULL;
        j->state = LEFT;
    }
    pthread_mutex_unlock(&h->lock);
    return done;
}

void clt_helpers_destroy(clt_helpers *h) {
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->quit = true;
    for (int i = 0; i < h->started; i++)
        if (h->helper[i].pid) kill(h->helper[i].pid, SIGKILL);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->started; i++) pthread_join(h->helper[i].thread, NULL);
    for (int i = 0; i < h->n; i++) {
        clt_free(h->jobs[i].what);
        clt_free(h->jobs[i].source);
        clt_free(h->jobs[i].options);
        clt_free(h->jobs[i].data);
    }
    clt_free(h->jobs);
    clt_free(h->id);
    clt_free(h->cache_dir);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    clt_free(h);
}
