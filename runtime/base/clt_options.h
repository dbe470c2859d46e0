/* clt_options: command lines from a declared table. Every subcommand of cltrain and every benchmark of
 * clbench declares its options once; the parser, --help (examples first), the man page and suggestions for
 * mistyped options use that table.
 *
 * Accepted forms: --name value, --name=value, -n value, -nvalue, combined flags (-qv), and -- which ends the
 * options. "-" alone is positional. Every command also accepts -h/--help, --color WHEN, -q/--quiet and
 * -v/--verbose; tables must not list these. */
#ifndef CLT_OPTIONS_H
#define CLT_OPTIONS_H

#include "runtime/base/clt_base.h"

typedef enum {
    CLT_OPT_FLAG,  /* target: bool *, becomes true; takes no value */
    CLT_OPT_INT,   /* target: int64_t *; the last use counts */
    CLT_OPT_FLOAT, /* target: double *; the last use counts */
    CLT_OPT_STR,   /* target: const char **, points into argv; the last use counts */
    CLT_OPT_LIST,  /* target: clt_strv *; each use adds a copy of its value */
    CLT_OPT_ENV    /* target: const char *, an environment variable, which the last use sets for this process
                      and those that it starts */
} clt_option_type;

typedef struct {
    const char *name; /* without the dashes, at least two letters */
    char letter;      /* of the short form; 0: no short form */
    clt_option_type type;
    void *target;     /* holds the default before; unchanged if the option is not used */
    const char *arg;  /* the value's name in --help: "N", "FILE"; NULL for flags */
    const char *help; /* one line */
} clt_option;

typedef struct {
    const char *name;     /* "cltrain train" */
    const char *usage;    /* what follows the name: "CONFIG.yaml [key.sub=value ...]" */
    const char *summary;  /* one sentence */
    const char *examples; /* lines of text, each with a newline; NULL: none */
    const clt_option *options;
    size_t n_options;
    bool stop_at_positional; /* all words behind the first positional argument are positional (launch) */
} clt_command;

/* Parses argv[1..]: stores options in their targets, adds copies of positional arguments to `rest`, and
 * applies the options of every command: colours to the process, the log level to the calling thread's
 * context. Returns -1 on success. Otherwise the caller frees `rest` and exits with the returned code: 0 after
 * the help was printed to stdout, 2 after an invalid option (one message is printed; targets before it are
 * set). */
int clt_options_parse(const clt_command *c, int argc, char **argv, clt_strv *rest);

/* Prints the --help text. */
void clt_options_help(const clt_command *c, FILE *out);

/* Prints the error "cltrain train: MESSAGE (see cltrain train --help)"; returns the exit code 2. */
int clt_options_fail(const clt_command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Checks before long work that a file can be created at `path`, a local path that was given to `option`
 * (named with its dashes). CLT_IO if `path` is a folder or its folder cannot be written. The permissions of
 * an existing file are not checked, and nothing is created. path NULL: the option is not used, CLT_OK. */
clt_status clt_options_look_at_file(const char *option, const char *path);

/* Applies an argument of --color to the process (clt_color_set): auto, always or never. false, and no change,
 * for any other text. */
bool clt_options_color(const char *when);

#endif
