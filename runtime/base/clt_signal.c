#include "runtime/base/clt_signal.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_context_internal.h"

static const char *_Atomic on_interrupt; /* NULL: nothing is printed */
static sigset_t watched;

static void say(const char *text) {
    if (on_interrupt && write(2, text, strlen(text)) < 0) on_interrupt = NULL;
}

static void *watch(void *arg) {
    (void)arg;
    for (int sig, interrupts = 0; sigwait(&watched, &sig) == 0;) {
        if (sig == SIGINT && ++interrupts > 1) {
            say("\nstopped at once\n");
            _exit(130);
        }
        if (sig == SIGINT) say(on_interrupt);
        clt_context_ask_stop(clt_context_current(), sig); /* this thread works in the process's context */
    }
    return NULL;
}

/* A thread with sigwait instead of signal handlers: compilers inside OpenCL drivers install their own
 * handlers. */
void clt_signal_install(const char *text) {
    static bool installed;
    pthread_t thread;
    on_interrupt = text;
    if (installed) return;
    installed = true;
    /* Ctrl-C also ends a `tee` that reads this output. Its lines are lost; the step must still be saved. */
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
    clt_context *c = clt_context_current();
    const double at = atomic_load(&c->stop_at);
    if (at > 0 && clt_wall() >= at) clt_context_ask_stop(c, CLT_SIGNAL_TIME);
    if (c->shared && atomic_load(c->shared)) clt_context_ask_stop(c, atomic_load(c->shared));
    const int why = atomic_load(&c->received);
    if (c->shared && why) atomic_store(c->shared, why);
    return why;
}

void clt_signal_at(double wall) {
    atomic_store(&clt_context_current()->stop_at, wall);
}

void clt_signal_share(_Atomic int32_t *word) {
    clt_context_current()->shared = word;
}
