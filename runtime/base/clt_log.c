#include "runtime/base/clt_base.h"
#include "runtime/base/clt_context_internal.h"
#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The terminal is the process's, not a context's. */
static struct {
    clt_color_mode color;
    bool bar_shown;
    double bar_time;
    FILE *kept; /* clt_log_keep_stderr */
} terminal;

static FILE *stream(void) {
    return terminal.kept ? terminal.kept : stderr;
}

void clt_log_keep_stderr(void) {
    if (terminal.kept) return;
    const int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    terminal.kept = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (terminal.kept)
        setvbuf(terminal.kept, NULL, _IONBF, 0);
    else if (fd >= 0)
        close(fd);
}

void clt_log_follow_stderr(void) {
    if (terminal.kept) fclose(terminal.kept);
    terminal.kept = NULL;
}

static clt_logger *logger(void) {
    return &clt_context_current()->log;
}

static clt_log_level level_of(clt_logger *l) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *e = l->level_set ? NULL : clt_env(CLT_ENV_LOG);
    for (int i = 0; e && i < (int)CLT_COUNT_OF(names); i++)
        if (strcmp(e, names[i]) == 0) l->level = (clt_log_level)i;
    l->level_set = true;
    return l->level;
}

void clt_log_set_level(clt_log_level level) {
    logger()->level = level;
    logger()->level_set = true;
}

clt_log_level clt_log_get_level(void) {
    return level_of(logger());
}

void clt_log_set_rank(int rank, int size) {
    logger()->rank = rank;
    logger()->size = size;
}

void clt_log_set_file(clt_file *f) {
    clt_logger *l = logger();
    pthread_mutex_lock(&l->lock);
    l->file = f;
    pthread_mutex_unlock(&l->lock);
}

static void erase_bar(void) {
    if (!terminal.bar_shown) return;
    fputs("\r\033[K", stream());
    terminal.bar_shown = false;
}

static const char *const labels[] = {"error: ", "warning: ", "", "debug: "};

static void print_terminal(clt_log_level level, const char *prefix, const char *since, const char *text) {
    static const char *const paint[] = {"\033[1;31m", "\033[1;33m", "", "\033[2m"};
    const bool color = clt_color(stream()) && paint[level][0];
    erase_bar();
    fprintf(stream(), "%s%s%s%s%s%s\n", prefix, color ? paint[level] : "", labels[level],
            color ? "\033[0m" : "", since, text);
}

/* Prints one message; the caller holds l->lock. */
static void print_line(clt_logger *l, clt_log_level level, const char *text) {
    char prefix[32] = "", since[32] = "";
    if (level == CLT_LOG_DEBUG) { /* with the seconds since the first debug line */
        if (l->start == 0) l->start = clt_now();
        snprintf(since, sizeof since, "%.3f s: ", clt_now() - l->start);
    }
    if (l->rank > 0) snprintf(prefix, sizeof prefix, "[rank %d] ", l->rank);
    if (l->sink.fn)
        l->sink.fn(l->sink.ctx, level, text);
    else if (clt_context_current()->process)
        print_terminal(level, prefix, since, text);
    if (!l->file) return;
    char *line = clt_format("%s%s%s%s\n", prefix, labels[level], since, text);
    (void)clt_file_try_append(l->file, line, strlen(line)); /* an error here must not become a message */
    clt_free(line);
}

/* Rank 0 has printed its held lines already. */
static void release_held(clt_logger *l, const bool *drop) {
    for (int i = 0; i < l->n_held; i++) {
        if (l->rank > 0 && !(drop && drop[i])) print_line(l, l->held[i].level, l->held[i].text);
        clt_free(l->held[i].text);
    }
    l->n_held = 0;
}

static void hold_line(clt_logger *l, clt_log_level level, const char *text) {
    if (l->n_held == CLT_LOG_HELD) release_held(l, NULL);
    l->held[l->n_held].level = level;
    l->held[l->n_held++].text = clt_strdup(text);
}

void clt_log(clt_log_level level, const char *fmt, ...) {
    clt_logger *l = logger();
    if (level > level_of(l) || (level == CLT_LOG_INFO && l->rank != 0)) return;
    va_list ap;
    va_start(ap, fmt);
    char *text = clt_vformat(fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&l->lock);
    bool hold = l->hold && level <= CLT_LOG_WARN;
    if (!hold || l->rank == 0) print_line(l, level, text);
    if (hold) hold_line(l, level, text);
    pthread_mutex_unlock(&l->lock);
    clt_free(text);
}

void clt_log_hold(bool on) {
    clt_logger *l = logger();
    pthread_mutex_lock(&l->lock);
    release_held(l, NULL);
    l->hold = on;
    pthread_mutex_unlock(&l->lock);
}

int clt_log_held(unsigned long long hash[CLT_LOG_HELD]) {
    clt_logger *l = logger();
    pthread_mutex_lock(&l->lock);
    int n = l->n_held;
    for (int i = 0; i < n; i++) hash[i] = clt_hash(l->held[i].text, strlen(l->held[i].text)).lo;
    pthread_mutex_unlock(&l->lock);
    return n;
}

void clt_log_release(const bool drop[CLT_LOG_HELD]) {
    clt_logger *l = logger();
    pthread_mutex_lock(&l->lock);
    release_held(l, drop);
    pthread_mutex_unlock(&l->lock);
}

bool clt_progress_active(void) {
    static int active = -1;
    if (active < 0) {
        const char *term = clt_env(CLT_ENV_TERM);
        active = isatty(fileno(stream())) && !(term && strcmp(term, "dumb") == 0) && !clt_env(CLT_ENV_CI);
    }
    const clt_context *c = clt_context_current();
    return active && c->process && c->log.rank == 0;
}

void clt_progress(bool force, const char *fmt, ...) {
    if (!clt_progress_active()) return;
    double now = clt_now();
    if (!force && now - terminal.bar_time < 0.1) return;
    terminal.bar_time = now;
    struct winsize ws;
    int width = ioctl(fileno(stream()), TIOCGWINSZ, &ws) == 0 && ws.ws_col > 0 ? ws.ws_col : 120;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (width - 1 < (int)sizeof line) line[width - 1] = 0;
    pthread_mutex_lock(&logger()->lock);
    fprintf(stream(), "\r%s\033[K", line);
    fflush(stream());
    terminal.bar_shown = true;
    pthread_mutex_unlock(&logger()->lock);
}

void clt_progress_end(void) {
    clt_logger *l = logger();
    if (!clt_context_current()->process) return;
    pthread_mutex_lock(&l->lock);
    if (terminal.bar_shown) fputc('\n', stream());
    terminal.bar_shown = false;
    pthread_mutex_unlock(&l->lock);
}

void clt_color_set(clt_color_mode mode) {
    terminal.color = mode;
}

static bool forced(const char *v) {
    return v && strcmp(v, "0") != 0;
}

bool clt_color(FILE *f) {
    if (terminal.color != CLT_COLOR_AUTO) return terminal.color == CLT_COLOR_ALWAYS;
    if (clt_env(CLT_ENV_NO_COLOR)) return false;
    if (forced(clt_env(CLT_ENV_CLICOLOR_FORCE)) || forced(clt_env(CLT_ENV_FORCE_COLOR))) return true;
    const char *c = clt_env(CLT_ENV_CLICOLOR), *term = clt_env(CLT_ENV_TERM);
    if (c && strcmp(c, "0") == 0) return false;
    return isatty(fileno(f)) && !(term && strcmp(term, "dumb") == 0);
}
