#include "clt_signal.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t received, interrupts;

static void on_signal(int sig) {
    static const char once[] =
        "\nstopping: finishing the step and saving; press Ctrl-C again to stop at once\n";
    static const char twice[] = "\nstopped at once, nothing was saved\n";
    ssize_t ignored = 0;
    if (sig == SIGINT && ++interrupts > 1) {
        ignored = write(2, twice, sizeof twice - 1);
        _exit(130);
    }
    if (!received) {
        received = sig;
        if (sig == SIGINT) ignored = write(2, once, sizeof once - 1);
    }
    (void)ignored;
}

void clt_signal_install(void) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
}

int clt_signal_received(void) {
    return received;
}
