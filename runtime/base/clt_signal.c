#include "clt_signal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

static atomic_int received;
static bool speaks;
static sigset_t watched;

static void say(const char *text, size_t n) {
    if (speaks && write(2, text, n) < 0) speaks = false;
}

static void *watch(void *arg) {
    static const char once[] =
        "\nstopping: finishing the step and saving; press Ctrl-C again to stop at once\n";
    static const char twice[] = "\nstopped at once, nothing was saved\n";
    (void)arg;
    for (int sig, interrupts = 0; sigwait(&watched, &sig) == 0;) {
        if (sig == SIGINT && ++interrupts > 1) {
            say(twice, sizeof twice - 1);
            _exit(130);
        }
        if (sig == SIGINT) say(once, sizeof once - 1);
        int none = 0;
        atomic_compare_exchange_strong(&received, &none, sig);
    }
    return NULL;
}

/* A thread takes the signals, and handlers none: compilers inside OpenCL drivers set handlers of their own.
 */
void clt_signal_install(bool speak) {
    pthread_t thread;
    speaks = speak;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &watched, NULL);
    if (pthread_create(&thread, NULL, watch, NULL) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &watched, NULL);
}

int clt_signal_received(void) {
    return atomic_load(&received);
}
