#include "runtime/device/clt_quiet.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool allowed;
static _Thread_local const char *compiling; /* the device, between this thread's begin and end */
static struct {
    int users;       /* threads between begin and end */
    int text, saved; /* what stands in stderr's place, and the real one; -1: stderr is not replaced */
} quiet = {.text = -1, .saved = -1};

static void restore(void) {
    fflush(stderr);
    if (quiet.saved >= 0) {
        dup2(quiet.saved, STDERR_FILENO);
        close(quiet.saved);
    }
    if (quiet.text >= 0) close(quiet.text);
    quiet.text = quiet.saved = -1;
}

/* The process ends while stderr is replaced: by the compiler, whose last line is the reason, or by another
 * thread, whose last words must not be lost. */
static void at_exit(void) {
    char text[4096];
    pthread_mutex_lock(&lock);
    fflush(stderr);
    const off_t end = quiet.text >= 0 ? lseek(quiet.text, 0, SEEK_END) : 0, most = sizeof text - 1;
    ssize_t n = end > 0 ? pread(quiet.text, text, (size_t)most, end > most ? end - most : 0) : 0;
    while (n > 0 && text[n - 1] == '\n') n--;
    text[CLT_MAX(n, 0)] = 0;
    restore();
    pthread_mutex_unlock(&lock);
    const char *line = strrchr(text, '\n');
    if (compiling)
        clt_error(CLT_FAIL, "the driver of %s ended the program while it compiled%s%s", compiling,
                  *text ? ": " : "", line ? line + 1 : text);
    else if (*text)
        fprintf(stderr, "%s\n", text);
}

void clt_quiet_allow(void) {
    if (atomic_exchange(&allowed, true)) return;
    clt_log_keep_stderr();
    atexit(at_exit);
}

void clt_quiet_begin(const char *device) {
    if (!atomic_load(&allowed)) return;
    compiling = device;
    pthread_mutex_lock(&lock);
    if (quiet.users++ == 0) {
        fflush(stderr);
        quiet.text = memfd_create("stderr", MFD_CLOEXEC);
        if (quiet.text < 0) quiet.text = open("/dev/null", O_WRONLY | O_CLOEXEC);
        quiet.saved = quiet.text >= 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0) : -1;
        if (quiet.saved >= 0) dup2(quiet.text, STDERR_FILENO);
    }
    pthread_mutex_unlock(&lock);
}

void clt_quiet_end(void) {
    if (!compiling) return;
    compiling = NULL;
    pthread_mutex_lock(&lock);
    if (--quiet.users == 0) restore();
    pthread_mutex_unlock(&lock);
}
