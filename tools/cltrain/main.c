/* cltrain: finds the subcommand and calls it. Everything else is in cmd_*.c and in the library. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "collectives/clt_launch.h"
#include "tools/cltrain/commands.h"
#include "runtime/base/clt_io_probe.h"
#include "runtime/base/clt_options.h"
#include "runtime/device/clt_device.h"
#include "runtime/object/clt_object.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
#define CLTRAIN_COMMAND(name, summary) {#name, summary, cmd_##name},
#include "tools/cltrain/commands.def"
#undef CLTRAIN_COMMAND
};

static void print_help(void) {
    puts("Examples\n"
         "  cltrain devices\n"
         "  cltrain data convert text/ --out data --concat-tokens 256 --eos\n"
         "  cltrain train run.yaml\n"
         "  cltrain train run.yaml max_duration=100ba optimizer.lr=1e-3\n"
         "  cltrain launch -n 4 train run.yaml\n"
         "  cltrain generate runs/my-run/ep0-ba100 --prompt \"Once upon\"\n"
         "\n"
         "Usage: cltrain COMMAND [arguments]\n"
         "Trains language models and Vision Transformers on any device with an OpenCL driver.\n"
         "\n"
         "Commands (details: cltrain COMMAND --help)");
    for (size_t i = 0; i < CLT_COUNT_OF(commands); i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    puts("\n"
         "Options\n"
         "  -h, --help     print this text\n"
         "  -V, --version  print version and git hash\n"
         "  --help-env     list the environment variables that cltrain reads\n"
         "  --color WHEN   auto, always or never\n"
         "  -q, --quiet    print only warnings and errors\n"
         "  -v, --verbose  print debug messages, too\n"
         "\n"
         "Exit codes: 0 done, 1 failure, 2 usage, 65 bad data, 69 no device, 74 input or output, 75 rerun to "
         "resume,\n"
         "78 configuration, 130 and 143 stopped by a signal without a save.");
}

static void print_env(void) {
    for (int i = 0; i < CLT_ENV_COUNT; i++)
        printf("%-28s %s\n", clt_env_name((clt_env_id)i), clt_env_help((clt_env_id)i));
}

static int usage_error(const char *what, const char *word, const char *near) {
    clt_error(CLT_USAGE, "cltrain: unknown %s '%s'%s%s%s (see cltrain --help)", what, word,
              near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return clt_status_exit_code(CLT_USAGE);
}

static int run_command(int argc, char **argv) {
    const char *names[CLT_COUNT_OF(commands)];
    for (size_t i = 0; i < CLT_COUNT_OF(commands); i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[0], names[i]) != 0) continue;
        if (commands[i].run) return commands[i].run(argc, argv);
        clt_error(CLT_FAIL, "this build does not contain cltrain %s", argv[0]);
        return clt_status_exit_code(CLT_FAIL);
    }
    return usage_error("command", argv[0], clt_nearest(argv[0], names, CLT_COUNT_OF(commands)));
}

/* Handles a global option before the subcommand. Returns -1 to continue at argv[*i], else the exit code. */
static int global_option(int argc, char **argv, int *i) {
    static const char *const known[] = {"--help",  "--version", "--help-env",
                                        "--color", "--quiet",   "--verbose"};
    const char *w = argv[*i];
    if (!strcmp(w, "-h") || !strcmp(w, "--help")) {
        print_help();
        return 0;
    }
    if (!strcmp(w, "-V") || !strcmp(w, "--version")) {
        printf("cltrain %s (%s)\n", clt_version(), clt_version_git());
        return 0;
    }
    if (!strcmp(w, "--help-env")) {
        print_env();
        return 0;
    }
    if (!strcmp(w, "-q") || !strcmp(w, "--quiet")) {
        clt_log_set_level(CLT_LOG_WARN);
    } else if (!strcmp(w, "-v") || !strcmp(w, "--verbose")) {
        clt_log_set_level(CLT_LOG_DEBUG);
    } else if (!strncmp(w, "--color", 7) && (w[7] == '=' || !w[7])) {
        const char *when = w[7] ? w + 8 : *i + 1 < argc ? argv[++*i] : "";
        if (!clt_options_color(when)) return usage_error("value of --color", when, NULL);
    } else {
        return usage_error("option", w, clt_nearest(w, known, CLT_COUNT_OF(known)));
    }
    return -1;
}

static int run_words(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') return run_command(argc - i, argv + i);
        int code = global_option(argc, argv, &i);
        if (code >= 0) return code;
    }
    print_help();
    return clt_status_exit_code(CLT_USAGE);
}

/* If a standard file is closed, a file opened later would get its number, and messages would be written into
 * it. */
static void fill_standard_files(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

/* Output that was printed may still fail to be written, for example on a full disk. 1 is a result, too: ckpt
 * diff found differences. */
static int check_output(int code) {
    errno = 0;
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (code > 1 || !lost) return code;
    return clt_status_exit_code(
        clt_error(CLT_IO, "standard output is incomplete: %s", errno ? strerror(errno) : "a write failed"));
}

int main(int argc, char **argv) {
    int code;
    fill_standard_files();
    if (clt_device_helper_main(argc, argv, &code)) return code;
    clt_launch_begin();
    clt_env_warn_unknown();
    clt_status st = clt_io_probe_from_env();
    if (st == CLT_OK) st = clt_object_register();
    return clt_launch_end(check_output(st == CLT_OK ? run_words(argc, argv) : clt_status_exit_code(st)));
}
