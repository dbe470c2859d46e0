#include "collectives/clt_end.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collectives/clt_launch.h"

void clt_end_process(int code) {
    clt_launch_report(code);
    _exit(code);
}

/* What the handler needs, prepared before it can run: it may call only functions that are safe in a signal
 * handler. */
static struct {
    int code;
    const char *text;
    size_t text_bytes;
    char path[512]; /* of the exit code for cltrain launch; "" without it */
    char line[16];  /* that file's contents */
    size_t line_bytes;
} late;

/* mpirun may be stuck as well and lose the exit code, so the handler leaves it in cltrain launch's folder,
 * too. */
static void on_alarm(int sig) {
    (void)sig;
    const int fd = late.path[0] ? open(late.path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    ssize_t written = fd < 0 ? 0 : write(fd, late.line, late.line_bytes);
    if (late.text_bytes) written = write(STDERR_FILENO, late.text, late.text_bytes);
    (void)written; /* the process ends either way */
    _exit(late.code);
}

void clt_end_after(double seconds, int code, const char *text) {
    static const double most = 1e6; /* alarm() counts no further */
    struct sigaction a;
    clt_end_cancel();
    late.code = code;
    late.text = text;
    late.text_bytes = text ? strlen(text) : 0;
    late.line_bytes = (size_t)snprintf(late.line, sizeof late.line, "%d\n", code);
    if (!clt_launch_exit_path(late.path)) late.path[0] = 0;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_alarm;
    sigemptyset(&a.sa_mask);
    sigaction(SIGALRM, &a, NULL);
    alarm((unsigned)CLT_MAX(1.0, ceil(CLT_MIN(seconds, most))));
}

void clt_end_cancel(void) {
    alarm(0);
    signal(SIGALRM, SIG_DFL);
}
