#include "runtime/base/clt_signal.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"

static atomic_int received;
static _Atomic double stop_at; /* 0: no time */
static _Atomic int32_t *shared;
static atomic_bool speaks;
static sigset_t watched;

static void take(int why) {
    int none = 0;
    atomic_compare_exchange_strong(&received, &none, why);
}

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
        take(sig);
    }
    return NULL;
}

/* A thread takes the signals, and handlers none: compilers inside OpenCL drivers set handlers of their own.
 */
void clt_signal_install(bool speak) {
    static bool installed;
    pthread_t thread;
    speaks = speak;
    if (installed) return;
    installed = true;
    /* Ctrl-C ends the `tee` behind a run, too: its lines are lost then, not the step that is to be saved. */
    signal(SIGPIPE, SIG_IGN);
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
    double at = atomic_load(&stop_at);
    if (at > 0 && clt_wall() >= at) take(CLT_SIGNAL_TIME);
    if (shared && atomic_load(shared)) take(atomic_load(shared));
    int why = atomic_load(&received);
    if (shared && why) atomic_store(shared, why);
    return why;
}

void clt_signal_at(double wall) {
    atomic_store(&stop_at, wall);
}

void clt_signal_share(_Atomic int32_t *word) {
    shared = word;
}
