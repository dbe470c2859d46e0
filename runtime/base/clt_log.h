/* clt_log: messages with levels. The cltrain program prints them to stderr, in colour on terminals, without
 * disturbing the progress line; a run of the library passes them to a function (clt_context.h). Lines of
 * ranks other than 0 get a prefix, and log.txt of the run gets a copy of every line. stdout is for results.
 *
 * Every function acts on the calling thread's context. */
#ifndef CLT_LOG_H
#define CLT_LOG_H

#include <stdbool.h>
#include <stdio.h>

typedef enum { CLT_LOG_ERROR, CLT_LOG_WARN, CLT_LOG_INFO, CLT_LOG_DEBUG } clt_log_level;

/* Receives one message, without a newline at the end, without label and prefix. Called from any thread of the
 * context, one call at a time. It must not call the library. */
typedef struct {
    void (*fn)(void *ctx, clt_log_level level, const char *text);
    void *ctx;
} clt_log_sink;

/* printf format, no newline. INFO lines of ranks other than 0 are dropped. */
void clt_log(clt_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define clt_info(...) clt_log(CLT_LOG_INFO, __VA_ARGS__)
#define clt_warn(...) clt_log(CLT_LOG_WARN, __VA_ARGS__)
#define clt_debug(...) clt_log(CLT_LOG_DEBUG, __VA_ARGS__)

/* The most detailed level that is shown. Default INFO; before the first call
 * CLTRAIN_LOG=error|warn|info|debug decides. */
void clt_log_set_level(clt_log_level level);
clt_log_level clt_log_get_level(void);

/* Sets this process's rank of `size` ranks. Lines of ranks other than 0 start with "[rank R] ". */
void clt_log_set_rank(int rank, int size);

/* Often every rank has the same error or warning. While holding is on, rank 0 prints at once and the other
 * ranks hold up to CLT_LOG_HELD errors and warnings until clt_log_release, which can drop duplicates. */
enum { CLT_LOG_HELD = 8 };
void clt_log_hold(bool on);
/* Hashes of the lines held (rank 0: printed) since the last release. Returns their number. */
int clt_log_held(unsigned long long hash[CLT_LOG_HELD]);
/* Prints each held line i unless drop[i] (drop NULL: prints all) and empties the list. */
void clt_log_release(const bool drop[CLT_LOG_HELD]);

/* Appends a copy of every line, without colour, to f, which was opened with CLT_IO_APPEND (NULL: to none). A
 * line that cannot be written is left out. The caller closes f. */
struct clt_file; /* clt_io.h */
void clt_log_set_file(struct clt_file *f);

/* Redraws the progress line on the terminal, at most 10 times per second unless `force`. Does nothing if
 * stderr is not a terminal, TERM is dumb, CI is set, or the rank is not 0. */
void clt_progress(bool force, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Ends the progress line: later output starts on a new line. */
void clt_progress_end(void);
/* Whether clt_progress draws anything. If not, callers print plain lines at intervals. */
bool clt_progress_active(void);

/* Whether output to f is coloured. The first of these that applies decides: --color, NO_COLOR, CLICOLOR_FORCE
 * or FORCE_COLOR, CLICOLOR, TERM and isatty. */
bool clt_color(FILE *f);
typedef enum { CLT_COLOR_AUTO, CLT_COLOR_ALWAYS, CLT_COLOR_NEVER } clt_color_mode;
void clt_color_set(clt_color_mode mode);

#endif
