/* clt_log: messages. In the program they go to stderr, with colour on terminals and a progress line that
 * never mixes with them; a run of the library gets them as calls (clt_context.h). In both there are levels, a
 * rank prefix when there are several ranks, and a copy to the run's log.txt. stdout is for results.
 *
 * Every function means the calling thread's context. */
#ifndef CLT_LOG_H
#define CLT_LOG_H

#include <stdbool.h>
#include <stdio.h>

typedef enum { CLT_LOG_ERROR, CLT_LOG_WARN, CLT_LOG_INFO, CLT_LOG_DEBUG } clt_log_level;

/* Gets one line without newline, label or prefix. Called from any thread of the context, one at a time; it
 * must not call the library. */
typedef struct {
    void (*fn)(void *ctx, clt_log_level level, const char *text);
    void *ctx;
} clt_log_sink;

/* printf format, no newline. INFO lines of ranks other than 0 are dropped; errors and warnings never are. */
void clt_log(clt_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define clt_info(...) clt_log(CLT_LOG_INFO, __VA_ARGS__)
#define clt_warn(...) clt_log(CLT_LOG_WARN, __VA_ARGS__)
#define clt_debug(...) clt_log(CLT_LOG_DEBUG, __VA_ARGS__)

/* Highest level shown (default INFO; CLTRAIN_LOG=error|warn|info|debug overrides). */
void clt_log_set_level(clt_log_level level);
clt_log_level clt_log_get_level(void);

/* Who speaks: lines of ranks other than 0 start with "[rank R] "; rank 0 speaks for the run. */
void clt_log_set_rank(int rank, int size);

/* With several ranks the same error or warning often comes to all of them. While holding is on, rank 0 prints
 * at once and the other ranks keep their errors and warnings, a few at most, until clt_log_release. */
enum { CLT_LOG_HELD = 8 };
void clt_log_hold(bool on);
/* Hashes of the lines that are held (rank 0: that were printed) since the last release. Returns how many. */
int clt_log_held(unsigned long long hash[CLT_LOG_HELD]);
/* Prints the held lines that are not in drop (NULL: all of them) and forgets all. */
void clt_log_release(const bool drop[CLT_LOG_HELD]);

/* Also append every line, without colour, to this file, opened with CLT_IO_APPEND; NULL stops. The caller owns
 * and closes it. A line that cannot be written is left out. */
struct clt_file; /* clt_io.h */
void clt_log_set_file(struct clt_file *f);

/* Redraws one line at the bottom of a terminal (at most 10 times a second unless `force`); does nothing when
 * stderr is no terminal, TERM is dumb, CI is set, or the rank is not 0. */
void clt_progress(bool force, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Ends the progress line, so that what comes next starts on a fresh line. */
void clt_progress_end(void);
/* Whether clt_progress draws anything; otherwise callers print plain lines at intervals. */
bool clt_progress_active(void);

/* Colour allowed on this stream? --color and NO_COLOR, CLICOLOR_FORCE, FORCE_COLOR, CLICOLOR, TERM, isatty.
 */
bool clt_color(FILE *f);
typedef enum { CLT_COLOR_AUTO, CLT_COLOR_ALWAYS, CLT_COLOR_NEVER } clt_color_mode;
void clt_color_set(clt_color_mode mode);

#endif
