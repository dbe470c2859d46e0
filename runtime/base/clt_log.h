/* clt_log: messages with levels. The cltrain program prints them to stderr, in colour on terminals, without
 * disturbing the progress line; a run of the library passes them to a function (clt_context.h). log.txt of
 * the run gets a copy of every line that is shown. stdout is for results.
 *
 * Functions act on the calling thread's context; the progress line and the colours belong to the process.
 * clt_log and the macros may be called from any thread. The other functions are for the thread that owns the
 * run. */
#ifndef CLT_LOG_H
#define CLT_LOG_H

#include <stdbool.h>
#include <stdio.h>

typedef enum { CLT_LOG_ERROR, CLT_LOG_WARN, CLT_LOG_INFO, CLT_LOG_DEBUG } clt_log_level;

/* fn receives one message: `text` has no newline at the end, no "error: " and no "[rank R] ", and is valid
 * during the call. fn is called in the thread that logs, one call at a time per context, and must not call
 * the library. */
typedef struct {
    void (*fn)(void *ctx, clt_log_level level, const char *text);
    void *ctx;
} clt_log_sink;

/* Logs one message: printf format, no newline. Messages above the context's level, and INFO messages of ranks
 * other than 0, are dropped. */
void clt_log(clt_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define clt_info(...) clt_log(CLT_LOG_INFO, __VA_ARGS__)
#define clt_warn(...) clt_log(CLT_LOG_WARN, __VA_ARGS__)
#define clt_debug(...) clt_log(CLT_LOG_DEBUG, __VA_ARGS__)

/* The most detailed level that is shown. In the process's context it is INFO or
 * CLTRAIN_LOG=error|warn|info|debug until the first clt_log_set_level; in others it begins with
 * clt_context_params.level. */
void clt_log_set_level(clt_log_level level);
clt_log_level clt_log_get_level(void);

/* Sets the rank, 0 to size - 1, of the context's run; 0 of 1 at first. On stderr and in the log file, lines
 * of ranks other than 0 start with "[rank R] ". */
void clt_log_set_rank(int rank, int size);

/* Often every rank has the same error or warning. While holding is on, rank 0 prints its errors and warnings
 * at once and also keeps them in a list; the other ranks only keep them, so that clt_log_release can drop
 * those that rank 0 has printed. The list has CLT_LOG_HELD places: the next line first prints (other ranks)
 * and drops the whole list. clt_log_hold does the same, in either direction. */
enum { CLT_LOG_HELD = 8 };
void clt_log_hold(bool on);
/* Writes the hash of each line in the list. Returns their number. */
int clt_log_held(unsigned long long hash[CLT_LOG_HELD]);
/* Empties the list; ranks other than 0 first print each line i of it for which drop[i] is false (drop NULL:
 * all). Holding stays on. */
void clt_log_release(const bool drop[CLT_LOG_HELD]);

/* From now on a copy of every line that is shown, without colour, is appended to f. f must be open with
 * CLT_IO_APPEND, is borrowed until the next call, and is closed by the caller. NULL: no copy. A line that
 * cannot be written is dropped. */
struct clt_file; /* clt_io.h */
void clt_log_set_file(struct clt_file *f);

/* From now on messages and the progress line go to a copy of the descriptor that stderr has now, so that they
 * appear while stderr is replaced (clt_quiet.h). If it cannot be copied, they go to stderr as before. Later
 * calls have no effect. Call it before there are other threads, and after descriptors are closed that the
 * process does not know. */
void clt_log_keep_stderr(void);
/* They go to stderr again: for a child process that gets another stderr. */
void clt_log_follow_stderr(void);

/* Redraws the progress line on stderr, cut to the terminal's width; printf format, no newline. Does nothing
 * if clt_progress_active is false, or, unless `force`, if the last call that drew is less than 0.1 s ago. */
void clt_progress(bool force, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Ends the progress line, if one is drawn: later output starts on a new line. */
void clt_progress_end(void);
/* Whether clt_progress draws: stderr is a terminal, TERM is not dumb, CI is not set (all three as at the
 * first call), the context is the process's, and its rank is 0. If not, callers print plain lines at
 * intervals. */
bool clt_progress_active(void);

/* Whether output to f is to be coloured. The first of these that applies decides: ALWAYS or NEVER given to
 * clt_color_set (--color); NO_COLOR is set: no; CLICOLOR_FORCE or FORCE_COLOR is set and not 0: yes; CLICOLOR
 * is 0: no; otherwise f is a terminal and TERM is not dumb. */
bool clt_color(FILE *f);
typedef enum { CLT_COLOR_AUTO, CLT_COLOR_ALWAYS, CLT_COLOR_NEVER } clt_color_mode;
void clt_color_set(clt_color_mode mode); /* for the whole process; at first AUTO */

#endif
