#include <string.h>
#include <unistd.h>

#include "tools/cltrain/launch_run.h"

static void put(clt_launch_filter *f, clt_str *s) {
    f->said |= s->len > 0;
    for (size_t at = 0; at < s->len;) {
        ssize_t n = write(2, s->s + at, s->len - at);
        if (n <= 0) break;
        at += (size_t)n;
    }
    clt_str_free(s);
}

static bool is_border(const clt_str *line) {
    enum { SHORTEST = 40 };
    return line->len > SHORTEST && strspn(line->s, "-") == line->len - 1;
}

/* Texts about the end of a process: cltrain itself reports which rank ended and why. */
static bool is_known(const char *box) {
    static const char *const about[] = {
        "MPI_ABORT was invoked",        "non-zero exit code", "non-zero status",          "exited on signal",
        "without calling \"finalize\"", "was killed",         "unexpectedly disconnected"};
    for (size_t i = 0; i < CLT_COUNT_OF(about); i++)
        if (strstr(box, about[i])) return true;
    return false;
}

/* "mpirun noticed that process rank 1 with PID 4711 on node b exited on signal 9 (Killed)." */
static void keep_death(clt_launch_filter *f) {
    const char *at = strstr(f->box.s, "process rank ");
    if (!at || f->death.signal) return;
    if (sscanf(at, "process rank %d with PID %ld on node %63s exited on signal %d", &f->death.rank,
               &f->death.pid, f->death.node, &f->death.signal) != 4)
        f->death.signal = 0;
}

static void end_box(clt_launch_filter *f) {
    f->boxed = false;
    if (is_known(f->box.s)) {
        f->ended = true;
        keep_death(f);
        clt_str_free(&f->box);
    }
    put(f, &f->box);
}

static void take_line(clt_launch_filter *f) {
    bool border = is_border(&f->line);
    if (!border && !f->boxed) {
        f->named |= strstr(f->line.s, ") is gone: it was at step") != NULL;
        put(f, &f->line);
        return;
    }
    clt_str_addn(&f->box, f->line.s, f->line.len);
    clt_str_free(&f->line);
    if (border && f->boxed)
        end_box(f);
    else
        f->boxed = true;
}

void clt_launch_filter_add(clt_launch_filter *f, const char *text, size_t n) {
    while (n > 0) {
        const char *end = memchr(text, '\n', n);
        size_t m = end ? (size_t)(end - text) + 1 : n;
        clt_str_addn(&f->line, text, m);
        if (end) take_line(f);
        text += m;
        n -= m;
    }
}

void clt_launch_filter_flush(clt_launch_filter *f) {
    if (f->line.len && f->line.s[0] != '-' && !f->boxed) put(f, &f->line);
}

void clt_launch_filter_end(clt_launch_filter *f) {
    if (f->line.len) clt_str_addn(&f->box, f->line.s, f->line.len);
    clt_str_free(&f->line);
    if (f->box.len) end_box(f);
}
