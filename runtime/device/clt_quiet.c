#include "runtime/device/clt_quiet.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"

/* One thread at a time holds the lock from begin to end: two that replace stderr would put each other's file
 * back. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool allowed, replaced;
static _Thread_local bool begun; /* this thread holds the lock */
static struct {
    pthread_t thread;
    const char *device;
    int text, saved; /* what stands in stderr's place, and the real one */
} quiet;

/* The process ends while stderr is replaced: by the compiler, whose last line is the reason, or by another
 * thread, whose last message must not be lost. The lock may be held by this thread, so it is
 * not taken. */
static void at_exit(void) {
    char text[4096];
    if (!atomic_exchange(&replaced, false)) return;
    fflush(stderr);
    dup2(quiet.saved, STDERR_FILENO);
    const off_t end = lseek(quiet.text, 0, SEEK_END), most = sizeof text - 1;
    ssize_t n = end > 0 ? pread(quiet.text, text, (size_t)most, end > most ? end - most : 0) : 0;
    while (n > 0 && text[n - 1] == '\n') n--;
    text[CLT_MAX(n, 0)] = 0;
    const char *line = strrchr(text, '\n');
    if (pthread_equal(quiet.thread, pthread_self()))
        clt_error(CLT_FAIL, "the driver of %s ended the program while it compiled%s%s", quiet.device,
                  *text ? ": " : "", line ? line + 1 : text);
    else if (*text)
        fprintf(stderr, "%s\n", text);
}

void clt_quiet_allow(void) {
    if (!atomic_exchange(&allowed, true)) atexit(at_exit);
}

void clt_quiet_begin(const char *device) {
    if (!atomic_load(&allowed)) return;
    pthread_mutex_lock(&lock);
    begun = true;
    fflush(stderr);
    quiet.text = memfd_create("stderr", MFD_CLOEXEC);
    if (quiet.text < 0) quiet.text = open("/dev/null", O_WRONLY | O_CLOEXEC);
    quiet.saved = quiet.text >= 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0) : -1;
    if (quiet.saved < 0) return;
    quiet.thread = pthread_self();
    quiet.device = device;
    dup2(quiet.text, STDERR_FILENO);
    atomic_store(&replaced, true);
}

void clt_quiet_end(void) {
    if (!begun) return;
    begun = false;
    if (atomic_exchange(&replaced, false)) {
        fflush(stderr);
        dup2(quiet.saved, STDERR_FILENO);
        close(quiet.saved);
    }
    if (quiet.text >= 0) close(quiet.text);
    pthread_mutex_unlock(&lock);
}
