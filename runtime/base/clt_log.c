#include "runtime/base/clt_base.h"
#include "runtime/base/clt_hash.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    clt_log_level level;
    bool level_set;
    int rank, size;
    FILE *file;
    clt_color_mode color;
    bool bar_shown;
    double bar_time;
    bool hold;
    struct {
        clt_log_level level;
        char *text;
    } held[CLT_LOG_HELD];
    int n_held;
} log_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = CLT_LOG_INFO, .size = 1};

static clt_log_level level_now(void) {
    if (!log_state.level_set) {
        const char *names[] = {"error", "warn", "info", "debug"}, *e = clt_env(CLT_ENV_LOG);
        for (int i = 0; e && i < 4; i++)
            if (strcmp(e, names[i]) == 0) log_state.level = (clt_log_level)i;
        log_state.level_set = true;
    }
    return log_state.level;
}

void clt_log_set_level(clt_log_level level) {
    log_state.level = level;
    log_state.level_set = true;
}

clt_log_level clt_log_get_level(void) {
    return level_now();
}

void clt_log_set_rank(int rank, int size) {
    log_state.rank = rank;
    log_state.size = size;
}

void clt_log_set_file(FILE *f) {
    pthread_mutex_lock(&log_state.lock);
    log_state.file = f;
    pthread_mutex_unlock(&log_state.lock);
}

static void erase_bar(void) {
    if (!log_state.bar_shown) return;
    fputs("\r\033[K", stderr);
    log_state.bar_shown = false;
}

/* One finished line; the lock is held. */
static void print_line(clt_log_level level, const char *text) {
    static const char *label[] = {"error: ", "warning: ", "", "debug: "};
    static const char *paint[] = {"\033[1;31m", "\033[1;33m", "", "\033[2m"};
    static double start; /* debug lines carry the seconds since the first of them */
    char prefix[32] = "", since[32] = "";
    if (level == CLT_LOG_DEBUG) {
        if (start == 0) start = clt_now();
        snprintf(since, sizeof since, "%.3f s: ", clt_now() - start);
    }
    if (log_state.rank > 0) snprintf(prefix, sizeof prefix, "[rank %d] ", log_state.rank);
    bool color = clt_color(stderr) && paint[level][0];
    erase_bar();
    fprintf(stderr, "%s%s%s%s%s%s\n", prefix, color ? paint[level] : "", label[level], color ? "\033[0m" : "",
            since, text);
    if (!log_state.file) return;
    fprintf(log_state.file, "%s%s%s%s\n", prefix, label[level], since, text);
    fflush(log_state.file);
}

/* Rank 0 has printed its lines already: it only remembers them. */
static void release_held(const bool *drop) {
    for (int i = 0; i < log_state.n_held; i++) {
        if (log_state.rank > 0 && !(drop && drop[i]))
            print_line(log_state.held[i].level, log_state.held[i].text);
        free(log_state.held[i].text);
    }
    log_state.n_held = 0;
}

static void hold_line(clt_log_level level, const char *text) {
    if (log_state.n_held == CLT_LOG_HELD) release_held(NULL);
    log_state.held[log_state.n_held].level = level;
    log_state.held[log_state.n_held++].text = clt_strdup(text);
}

void clt_log(clt_log_level level, const char *fmt, ...) {
    if (level > level_now() || (level == CLT_LOG_INFO && log_state.rank != 0)) return;
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) text = clt_strdup(fmt);
    va_end(ap);
    pthread_mutex_lock(&log_state.lock);
    bool hold = log_state.hold && level <= CLT_LOG_WARN;
    if (!hold || log_state.rank == 0) print_line(level, text);
    if (hold) hold_line(level, text);
    pthread_mutex_unlock(&log_state.lock);
    free(text);
}

void clt_log_hold(bool on) {
    pthread_mutex_lock(&log_state.lock);
    release_held(NULL);
    log_state.hold = on;
    pthread_mutex_unlock(&log_state.lock);
}

int clt_log_held(unsigned long long hash[CLT_LOG_HELD]) {
    pthread_mutex_lock(&log_state.lock);
    int n = log_state.n_held;
    for (int i = 0; i < n; i++) hash[i] = clt_hash(log_state.held[i].text, strlen(log_state.held[i].text)).lo;
    pthread_mutex_unlock(&log_state.lock);
    return n;
}

void clt_log_release(const bool drop[CLT_LOG_HELD]) {
    pthread_mutex_lock(&log_state.lock);
    release_held(drop);
    pthread_mutex_unlock(&log_state.lock);
}

bool clt_progress_active(void) {
    static int active = -1;
    if (active < 0) {
        const char *term = clt_env(CLT_ENV_TERM);
        active = isatty(2) && !(term && strcmp(term, "dumb") == 0) && !clt_env(CLT_ENV_CI);
    }
    return active && log_state.rank == 0;
}

void clt_progress(bool force, const char *fmt, ...) {
    if (!clt_progress_active()) return;
    double now = clt_now();
    if (!force && now - log_state.bar_time < 0.1) return;
    log_state.bar_time = now;
    struct winsize ws;
    int width = ioctl(2, TIOCGWINSZ, &ws) == 0 && ws.ws_col > 0 ? ws.ws_col : 120;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (width - 1 < (int)sizeof line) line[width - 1] = 0;
    pthread_mutex_lock(&log_state.lock);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    log_state.bar_shown = true;
    pthread_mutex_unlock(&log_state.lock);
}

void clt_progress_end(void) {
    pthread_mutex_lock(&log_state.lock);
    if (log_state.bar_shown) fputc('\n', stderr);
    log_state.bar_shown = false;
    pthread_mutex_unlock(&log_state.lock);
}

void clt_color_set(clt_color_mode mode) {
    log_state.color = mode;
}

static bool forced(const char *v) {
    return v && strcmp(v, "0") != 0;
}

bool clt_color(FILE *f) {
    if (log_state.color != CLT_COLOR_AUTO) return log_state.color == CLT_COLOR_ALWAYS;
    if (clt_env(CLT_ENV_NO_COLOR)) return false;
    if (forced(clt_env(CLT_ENV_CLICOLOR_FORCE)) || forced(clt_env(CLT_ENV_FORCE_COLOR))) return true;
    const char *c = clt_env(CLT_ENV_CLICOLOR), *term = clt_env(CLT_ENV_TERM);
    if (c && strcmp(c, "0") == 0) return false;
    return isatty(fileno(f)) && !(term && strcmp(term, "dumb") == 0);
}
