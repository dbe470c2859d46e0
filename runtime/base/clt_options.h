/* clt_options: command lines from a declared table. Every subcommand of cltrain and every benchmark of
 * clbench declares its options once; the parser, --help (examples first), the man page and suggestions for
 * mistyped options use that table.
 *
 * Accepted forms: --name value, --name=value, -n value, -nvalue, combined flags (-qv), and -- which ends the
 * options. Every command also accepts -h/--help, --color=WHEN, -q/--quiet and -v/--verbose; its table does
 * not list them. */
#ifndef CLT_OPTIONS_H
#define CLT_OPTIONS_H

#include "runtime/base/clt_base.h"

typedef enum {
    CLT_OPT_FLAG,  /* bool *: becomes true */
    CLT_OPT_INT,   /* int64_t * */
    CLT_OPT_FLOAT, /* double * */
    CLT_OPT_STR,   /* const char **: points into argv */
    CLT_OPT_LIST   /* clt_strv *: each use adds a value */
} clt_option_type;

typedef struct {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    clt_option_type type;
    void *target;
    const char *arg; /* "N", "FILE"; NULL for flags */
    const char *help;
} clt_option;

typedef struct {
    const char *name;     /* "cltrain train" */
    const char *usage;    /* what follows the name: "CONFIG.yaml [key.sub=value ...]" */
    const char *summary;  /* one sentence */
    const char *examples; /* lines of text, each with a newline */
    const clt_option *options;
    size_t n_options;
    bool stop_at_positional; /* all words behind the first positional argument are positional (launch) */
} clt_command;

/* Parses argv[1..] and appends positional arguments to `rest`. Returns -1 on success. Otherwise the caller
 * exits with the returned code: 0 after --help (printed to stdout), 2 after an invalid option (one message
 * printed). */
int clt_options_parse(const clt_command *c, int argc, char **argv, clt_strv *rest);

/* Prints the --help text. */
void clt_options_help(const clt_command *c, FILE *out);

/* Prints "error: cltrain train: MESSAGE (see cltrain train --help)"; returns 2. */
int clt_options_fail(const clt_command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Checks before long work that the file given to an option (named with its dashes) can be written, without
 * creating it. CLT_IO with a message if not. path NULL: the option is not used, CLT_OK. */
clt_status clt_options_look_at_file(const char *option, const char *path);

/* Applies --color's argument: auto, always or never; false if it is none of these. */
bool clt_options_color(const char *when);

#endif
