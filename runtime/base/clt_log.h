/* clt_log: the one way to stderr. Levels, a rank prefix when there are several ranks, colour on terminals,
 * a copy to the run's log.txt, and a progress line that never mixes with messages. stdout is for results. */
#ifndef CLT_LOG_H
#define CLT_LOG_H

#include <stdbool.h>
#include <stdio.h>

typedef enum { CLT_LOG_ERROR, CLT_LOG_WARN, CLT_LOG_INFO, CLT_LOG_DEBUG } clt_log_level;

/* printf format, no newline. INFO lines of ranks other than 0 are dropped; errors and warnings never are. */
void clt_log(clt_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define clt_info(...) clt_log(CLT_LOG_INFO, __VA_ARGS__)
#define clt_warn(...) clt_log(CLT_LOG_WARN, __VA_ARGS__)
#define clt_debug(...) clt_log(CLT_LOG_DEBUG, __VA_ARGS__)

/* Highest level shown (default INFO; CLTRAIN_LOG=error|warn|info|debug overrides). */
void clt_log_set_level(clt_log_level level);
clt_log_level clt_log_get_level(void);

/* Who speaks: with size > 1 every line starts with "[rank R] ". */
void clt_log_set_rank(int rank, int size);

/* Also append every line, without colour, to this stream; NULL stops. The caller owns and closes it. */
void clt_log_set_file(FILE *f);

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
