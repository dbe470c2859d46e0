/* clt_options: command lines from a declared table. Every subcommand of cltrain and every benchmark of
 * clbench describes its options once; parsing, --help (examples first), the man page and the suggestion for a
 * mistyped option all come from that table.
 *
 * Understood: --name value, --name=value, -n value, -nvalue, flags, and -- which ends the options. -h/--help,
 * --color=WHEN, -q/--quiet and -v/--verbose work on every command and are not listed in its table. */
#ifndef CLT_OPTIONS_H
#define CLT_OPTIONS_H

#include "runtime/base/clt_base.h"

typedef enum {
    CLT_OPT_FLAG,  /* bool *: set to true */
    CLT_OPT_INT,   /* int64_t * */
    CLT_OPT_FLOAT, /* double * */
    CLT_OPT_STR,   /* const char **: points into argv */
    CLT_OPT_LIST   /* clt_strv *: may be given several times */
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
    const char *examples; /* lines of text, each ending in a newline */
    const clt_option *options;
    size_t n_options;
    bool stop_at_positional; /* what follows the first positional argument is not looked at (launch) */
} clt_command;

/* Parses argv[1..]; positional arguments are appended to `rest`. Returns -1 to go on; otherwise the program
 * ends with the returned exit code: 0 after --help (printed to stdout), 2 after a wrong option (one message).
 */
int clt_options_parse(const clt_command *c, int argc, char **argv, clt_strv *rest);

/* The --help text. */
void clt_options_help(const clt_command *c, FILE *out);

/* "cltrain train: this is wrong (see cltrain train --help)"; returns 2. */
int clt_options_fail(const clt_command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Whether the file that an option (with its dashes) names can be written, before long work; it is not
 * touched. CLT_IO says what is wrong. path NULL: no file is wanted. */
clt_status clt_options_look_at_file(const char *option, const char *path);

/* --color's argument: auto, always or never; false if it is none of them. */
bool clt_options_color(const char *when);

#endif
