#include "runtime/base/clt_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"

enum { OPTION_COLUMN = 30 };

static void help_line(FILE *out, const char *left, const char *help) {
    if (strlen(left) >= OPTION_COLUMN)
        fprintf(out, "%s\n%*s%s\n", left, OPTION_COLUMN, "", help);
    else
        fprintf(out, "%-*s%s\n", OPTION_COLUMN, left, help);
}

void clt_options_help(const clt_command *c, FILE *out) {
    if (c->examples) {
        fprintf(out, "Examples\n");
        for (const char *line = c->examples; *line;) {
            line += strspn(line, " ");
            const char *end = strchr(line, '\n');
            int n = end ? (int)(end - line) : (int)strlen(line);
            fprintf(out, "  %.*s\n", n, line);
            line += n + (end != NULL);
        }
        fputc('\n', out);
    }
    fprintf(out, "Usage: %s %s\n%s\n\nOptions\n", c->name, c->usage ? c->usage : "", c->summary);
    for (size_t i = 0; i < c->n_options; i++) {
        const clt_option *o = &c->options[i];
        char *left =
            o->letter
                ? clt_format("  -%c, --%s%s%s", o->letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "")
                : clt_format("      --%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        help_line(out, left, o->help);
        clt_free(left);
    }
    help_line(out, "      --color WHEN", "auto, always or never");
    help_line(out, "  -q, --quiet", "print only warnings and errors");
    help_line(out, "  -v, --verbose", "print debug messages, too");
    help_line(out, "  -h, --help", "print this text");
}

int clt_options_fail(const clt_command *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = clt_vformat(fmt, ap);
    va_end(ap);
    clt_error(CLT_USAGE, "%s: %s (see %s --help)", c->name, text, c->name);
    clt_free(text);
    return clt_status_exit_code(CLT_USAGE);
}

bool clt_options_color(const char *when) {
    static const char *const names[] = {"auto", "always", "never"};
    for (int i = 0; i < 3; i++)
        if (strcmp(when, names[i]) == 0) {
            clt_color_set((clt_color_mode)i);
            return true;
        }
    return false;
}

/* The options of every command. */
typedef struct {
    bool help, quiet, verbose;
    const char *color;
    clt_option table[4];
} common_options;

static void common_init(common_options *c) {
    *c = (common_options){0};
    c->table[0] = (clt_option){"help", 'h', CLT_OPT_FLAG, &c->help, NULL, NULL};
    c->table[1] = (clt_option){"quiet", 'q', CLT_OPT_FLAG, &c->quiet, NULL, NULL};
    c->table[2] = (clt_option){"verbose", 'v', CLT_OPT_FLAG, &c->verbose, NULL, NULL};
    c->table[3] = (clt_option){"color", 0, CLT_OPT_STR, &c->color, "WHEN", NULL};
}

static const clt_option *find(const clt_command *c, const common_options *common, const char *name,
                              size_t n) {
    for (size_t i = 0; i < c->n_options + CLT_COUNT_OF(common->table); i++) {
        const clt_option *o = i < c->n_options ? &c->options[i] : &common->table[i - c->n_options];
        if (n == 1 ? o->letter == name[0] : strlen(o->name) == n && strncmp(o->name, name, n) == 0) return o;
    }
    return NULL;
}

static int unknown(const clt_command *c, const common_options *common, const char *name, size_t n) {
    size_t total = c->n_options + CLT_COUNT_OF(common->table);
    const char **known = clt_calloc(total, sizeof *known);
    for (size_t i = 0; i < total; i++)
        known[i] = i < c->n_options ? c->options[i].name : common->table[i - c->n_options].name;
    char *word = clt_strndup(name, n);
    const char *near = clt_nearest(word, known, total);
    int code = near ? clt_options_fail(c, "unknown option --%s; did you mean --%s?", word, near)
                    : clt_options_fail(c, "unknown option --%s", word);
    clt_free(word);
    clt_free(known);
    return code;
}

static int store(const clt_command *c, const clt_option *o, const char *value) {
    if (o->type == CLT_OPT_STR) *(const char **)o->target = value;
    if (o->type == CLT_OPT_LIST) clt_strv_add(o->target, value);
    if (o->type == CLT_OPT_ENV) setenv(o->target, value, 1);
    if (o->type == CLT_OPT_INT && !clt_parse_i64(value, o->target))
        return clt_options_fail(c, "--%s needs a whole number, not '%s'", o->name, value);
    if (o->type == CLT_OPT_FLOAT && !clt_parse_f64(value, o->target))
        return clt_options_fail(c, "--%s needs a number, not '%s'", o->name, value);
    return -1;
}

/* Parses argv[*i], which starts with '-'; moves *i if the value is the next word. Returns -1 or an exit
 * code. */
static int parse_word(const clt_command *c, const common_options *common, int argc, char **argv, int *i) {
    const char *word = argv[*i];
    bool is_long = word[1] == '-';
    const char *name = word + (is_long ? 2 : 1);
    size_t n = is_long ? strcspn(name, "=") : 1;
    const clt_option *o = is_long && n == 1 ? NULL : find(c, common, name, n);
    if (!o && !is_long) return clt_options_fail(c, "unknown option -%c", name[0]);
    if (!o) return unknown(c, common, name, n);
    const char *value = name[n] ? name + n + (is_long ? 1 : 0) : NULL;
    if (o->type == CLT_OPT_FLAG) {
        if (value && is_long) return clt_options_fail(c, "--%s takes no value", o->name);
        *(bool *)o->target = true;
        for (; value && *value; value++) { /* -qv */
            const clt_option *next = find(c, common, value, 1);
            if (!next || next->type != CLT_OPT_FLAG)
                return clt_options_fail(c, "option -%c cannot be combined with others: unknown or no flag",
                                        *value);
            *(bool *)next->target = true;
        }
        return -1;
    }
    if (!value) {
        if (*i + 1 >= argc) return clt_options_fail(c, "--%s needs a value: %s", o->name, o->arg);
        value = argv[++*i];
    }
    return store(c, o, value);
}

int clt_options_parse(const clt_command *c, int argc, char **argv, clt_strv *rest) {
    common_options common;
    common_init(&common);
    bool options = true;
    for (int i = 1; i < argc; i++) {
        if (!options || argv[i][0] != '-' || !argv[i][1]) {
            clt_strv_add(rest, argv[i]);
            if (c->stop_at_positional) options = false;
            continue;
        }
        if (strcmp(argv[i], "--") == 0) {
            options = false;
            continue;
        }
        int code = parse_word(c, &common, argc, argv, &i);
        if (code >= 0) return code;
    }
    if (common.color && !clt_options_color(common.color))
        return clt_options_fail(c, "--color needs auto, always or never, not '%s'", common.color);
    if (common.quiet) clt_log_set_level(CLT_LOG_WARN);
    if (common.verbose) clt_log_set_level(CLT_LOG_DEBUG);
    if (common.help) {
        clt_options_help(c, stdout);
        return 0;
    }
    return -1;
}

clt_status clt_options_look_at_file(const char *option, const char *path) {
    if (!path) return CLT_OK;
    char *folder = clt_path_dir(path);
    clt_status st = CLT_OK;
    if (clt_io_is_dir(path))
        st = clt_error(CLT_IO, "%s %s is a folder; name a file", option, path);
    else if (access(folder, W_OK | X_OK) != 0)
        st = clt_error(CLT_IO, "%s %s cannot be written: folder %s: %s", option, path, folder,
                       strerror(errno));
    clt_free(folder);
    return st;
}
