/* cltrain ckpt prune. */
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"

typedef struct {
    bool dry_run;
    int n;
    uint64_t bytes;
} tally;

static void print_waste(void *ctx, const clt_ckpt_waste *w) {
    tally *t = ctx;
    char size[32] = "unknown size";
    if (w->bytes != UINT64_MAX) {
        clt_human_bytes((double)w->bytes, size);
        t->bytes += w->bytes;
    }
    printf("%s %s (%s, %s)\n", t->dry_run ? "would remove" : "removed", w->path, w->what, size);
    t->n++;
}

/* "90", "90s", "30m", "2h", "7d". */
static bool parse_duration(const char *text, double *seconds) {
    static const struct {
        char unit;
        double seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    const size_t n = strlen(text);
    double unit = 1;
    size_t digits = n;
    for (size_t i = 0; i < CLT_COUNT_OF(units) && n; i++)
        if (text[n - 1] == units[i].unit) {
            unit = units[i].seconds;
            digits = n - 1;
        }
    char *number = clt_strndup(text, digits);
    const bool ok = clt_parse_f64(number, seconds) && *seconds >= 0 && *seconds <= 1e9;
    clt_free(number);
    *seconds *= unit;
    return ok;
}

static int prune(const char *folder, clt_ckpt_prune_params *p) {
    tally t = {.dry_run = p->dry_run};
    char size[32];
    p->each = print_waste;
    p->ctx = &t;
    clt_status st = clt_ckpt_prune(folder, p);
    if (st == CLT_OK || t.n)
        printf(p->dry_run ? "%d to remove, %s (dry run)\n" : "%d removed, %s freed\n", t.n,
               clt_human_bytes((double)t.bytes, size));
    return clt_status_exit_code(st);
}

int ckpt_prune(int argc, char **argv) {
    clt_ckpt_prune_params p = clt_ckpt_prune_params_default();
    const char *age = NULL;
    clt_option options[] = {
        {"keep", 0, CLT_OPT_INT, &p.keep, "N", "also remove all but the newest N valid checkpoints"},
        {"uploads-older-than", 0, CLT_OPT_STR, &age, "TIME",
         "end uploads that began longer ago (30m, 2h, 7d; default 1h)"},
        {"dry-run", 0, CLT_OPT_FLAG, &p.dry_run, NULL, "print what would be removed, and remove nothing"}};
    clt_command c = {
        "cltrain ckpt prune",
        "FOLDER",
        "Removes from a folder of checkpoints what killed saves left: data that no manifest names, uploads\n"
        "that were not finished, temporary folders. With --keep also old checkpoints. What a manifest names\n"
        "stays; so do checkpoints that are not valid (see cltrain ckpt verify). Ends with 74 while a run "
        "writes\n"
        "to the folder. A dry run takes no lock: beside such a run it also lists the data of a save under "
        "way.",
        "cltrain ckpt prune s3://my-bucket/runs/a --dry-run\ncltrain ckpt prune runs/a --keep 3\n",
        options,
        CLT_COUNT_OF(options),
        false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 1, &rest);
    if (code >= 0) return code;
    if (p.keep == 0 || p.keep < -1)
        code = clt_options_fail(&c, "--keep must be at least 1");
    else if (age && !parse_duration(age, &p.uploads_age))
        code = clt_options_fail(&c, "--uploads-older-than: '%s' is no time (30m, 2h, 7d)", age);
    else
        code = prune(rest.v[0], &p);
    clt_strv_free(&rest);
    return code;
}
