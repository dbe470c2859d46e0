/* cltrain top: a live view of a run, from its metrics.jsonl. Plain text, printed once, where stdout is not a
 * terminal. */
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "tools/cltrain/commands.h"
#include "tools/cltrain/top_view.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/config/clt_config.h"

/* --- the run --- */

typedef struct {
    char *path, *folder; /* of metrics.jsonl */
    metrics m;
    clt_time max_duration;
    struct timespec changed;
    off_t bytes;
} followed;

static void open_run(followed *f, const char *where) {
    const bool file = strcmp(clt_path_base(where), "metrics.jsonl") == 0 || clt_io_is_file(where);
    f->path = file ? clt_strdup(where) : clt_path_join(where, "metrics.jsonl");
    f->folder = clt_path_dir(f->path);
}

/* From config.yaml of the run's folder; unknown if there is none. */
static void read_duration(followed *f) {
    char *path = clt_path_join(f->folder, "config.yaml");
    clt_config *c;
    clt_error_quiet(true);
    if (clt_io_is_file(path) && clt_config_load(path, NULL, 0, &c) == CLT_OK) {
        f->max_duration = c->max_duration;
        clt_config_free(c);
    }
    clt_error_quiet(false);
    clt_free(path);
}

/* Whether the file changed since the last call; reads what is new. */
static clt_status look(followed *f, bool *changed) {
    struct stat s;
    *changed = false;
    if (stat(f->path, &s) != 0) return CLT_OK; /* not there yet */
    if (s.st_size == f->bytes && s.st_mtim.tv_sec == f->changed.tv_sec &&
        s.st_mtim.tv_nsec == f->changed.tv_nsec)
        return CLT_OK;
    f->bytes = s.st_size;
    f->changed = s.st_mtim;
    if (f->max_duration.value == 0) read_duration(f);
    *changed = true;
    return metrics_follow(f->path, &f->m);
}

static void draw(const followed *f, const top_screen *s, clt_str *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const double age = f->bytes ? (double)(now.tv_sec - f->changed.tv_sec) : -1;
    const top_run run = {f->folder, &f->m, f->max_duration, age};
    top_draw(&run, s, out);
}

static bool is_utf8(void) {
    char *before = clt_strdup(setlocale(LC_CTYPE, NULL));
    setlocale(LC_CTYPE, "");
    const bool utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    setlocale(LC_CTYPE, before);
    clt_free(before);
    return utf8;
}

static clt_status print_once(followed *f) {
    enum { PLAIN_COLUMNS = 80 };
    bool changed;
    clt_str out = {0};
    const top_screen s = {.columns = PLAIN_COLUMNS, .utf8 = is_utf8()};
    CLT_TRY(look(f, &changed));
    if (!changed) return clt_error(CLT_IO, "%s does not exist: is this the folder of a run?", f->path);
    draw(f, &s, &out);
    fputs(out.s, stdout);
    clt_str_free(&out);
    return CLT_OK;
}

/* --- the terminal --- */

static volatile sig_atomic_t asked; /* the signal that asks to end or to stop; 0: none */
static struct termios before;

static void note_signal(int number) {
    if (number != SIGWINCH) asked = number;
}

static void put(const char *text, size_t n) {
    while (n > 0) {
        const ssize_t done = write(STDOUT_FILENO, text, n);
        if (done <= 0) return; /* the terminal is gone: a signal says so */
        text += done;
        n -= (size_t)done;
    }
}

#define PUT(text) put(text, sizeof(text) - 1)

/* The second screen, without a cursor; keys arrive at once and are not shown. */
static void enter_screen(void) {
    struct termios t = before;
    t.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &t);
    PUT("\033[?1049h\033[?25l");
}

static void leave_screen(void) {
    PUT("\033[?25h\033[?1049l");
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static top_screen measure(bool utf8) {
    struct winsize w = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0) w = (struct winsize){24, 80, 0, 0};
    return (top_screen){.columns = w.ws_col, .rows = w.ws_row, .utf8 = utf8, .live = true};
}

/* Draws over the old picture, line by line. A line is cleared before its text: after a text of the full width
 * some terminals would clear its last character. */
static void show(const followed *f, const top_screen *s) {
    clt_str text = {0}, out = {0};
    int row = 0;
    draw(f, s, &text);
    clt_str_add(&out, "\033[H");
    for (char *at = text.s; *at && row < s->rows; row++) {
        const size_t n = strcspn(at, "\n");
        clt_str_addf(&out, "%s\033[K%.*s", row ? "\n" : "", (int)n, at);
        at += n + 1;
    }
    clt_str_add(&out, "\033[J");
    put(out.s, out.len);
    clt_str_free(&text);
    clt_str_free(&out);
}

/* Waits for a key, a signal or the end of the interval. Whether 'q' was pressed. */
static bool wait_for_key(double seconds) {
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    if (poll(&p, 1, (int)(seconds * 1000)) <= 0) return false;
    return read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q';
}

/* Ctrl-Z: the terminal belongs to the shell until the program is continued. */
static void stop_here(void) {
    leave_screen();
    raise(SIGSTOP);
    enter_screen();
    asked = 0;
}

static clt_status watch(followed *f, double interval) {
    const bool utf8 = is_utf8();
    clt_status st = CLT_OK;
    while (st == CLT_OK) {
        bool changed;
        const top_screen s = measure(utf8);
        st = look(f, &changed);
        if (st == CLT_OK) show(f, &s);
        if (st == CLT_OK && wait_for_key(interval)) break;
        if (asked == SIGTSTP) stop_here();
        if (asked) break;
    }
    return st;
}

static clt_status live(followed *f, double interval) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
    const struct sigaction note = {.sa_handler = note_signal}; /* without SA_RESTART: poll returns */
    if (tcgetattr(STDIN_FILENO, &before) != 0) return print_once(f);
    for (size_t i = 0; i < CLT_COUNT_OF(numbers); i++) sigaction(numbers[i], &note, NULL);
    enter_screen();
    clt_error_quiet(true); /* a message would be drawn over: it is printed below */
    clt_status st = watch(f, interval);
    clt_error_quiet(false);
    leave_screen();
    if (st != CLT_OK) clt_error(st, "%s", clt_last_error());
    /* SIGINT and SIGQUIT are how a user ends a live view. */
    if (asked == SIGTERM || asked == SIGHUP) {
        signal(asked, SIG_DFL);
        raise(asked);
    }
    return st;
}

int cmd_top(int argc, char **argv) {
    double interval = 1;
    bool once = false;
    const clt_option options[] = {
        {"interval", 'i', CLT_OPT_FLOAT, &interval, "SECONDS",
         "time between two looks at the file (default 1)"},
        {"once", 0, CLT_OPT_FLAG, &once, NULL, "print the view once, as plain text, and exit"},
    };
    const clt_command command = {
        .name = "cltrain top",
        .usage = "RUN_DIR|metrics.jsonl",
        .summary =
            "Shows loss, throughput, memory, the remaining time and the last events of a run, live. Plain "
            "text, once, if stdout is not a terminal.",
        .examples = "  cltrain top runs/a\n  cltrain top runs/a --once\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    enum { MOST_SECONDS = 3600 };
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 1) code = clt_options_fail(&command, "one run folder is required");
    if (code < 0 && !(interval >= 0.05 && interval <= MOST_SECONDS))
        code = clt_options_fail(&command, "--interval is %g: it must be from 0.05 to %d", interval,
                                MOST_SECONDS);
    if (code < 0) {
        followed f = {0};
        open_run(&f, rest.v[0]);
        const bool terminal = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO);
        code = clt_status_exit_code(terminal && !once ? live(&f, interval) : print_once(&f));
        metrics_free(&f.m);
        clt_free(f.path);
        clt_free(f.folder);
    }
    clt_strv_free(&rest);
    return code;
}
