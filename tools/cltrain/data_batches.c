/* cltrain data batches CONFIG.yaml: what training with the configuration sees, batch by batch and rank by
 * rank, as JSON. */
#include "collectives/clt_lanes.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_loader.h"
#include "runtime/train/config/clt_config.h"
#include "runtime/train/engine/clt_plan.h"
#include "tools/cltrain/data_commands.h"

typedef struct {
    int64_t batches, ranks, epoch;
} batch_options;

typedef struct {
    const clt_config *c;
    clt_loader *l;
    clt_lane_split split;
    int64_t T;
    bool seq_ids;
    int32_t *arrays; /* [rows of a batch][4][T] */
    clt_loader_view *row;
    clt_str *ids; /* of each row, as JSON */
} printer;

/* --- one batch --- */

/* A number, or with packing a list. */
static void print_ids(const clt_loader_view *v, clt_str *out) {
    if (v->packed) clt_str_add(out, "[");
    for (size_t i = 0; i < v->num_samples; i++)
        clt_str_addf(out, "%s%lld", i ? "," : "", (long long)v->samples[i]);
    if (v->packed) clt_str_add(out, "]");
}

static void print_array(const char *name, const printer *p, size_t offset, int64_t begin, int64_t end,
                        int64_t width, clt_str *out) {
    clt_str_addf(out, ",\"%s\":[", name);
    for (int64_t i = begin; i < end; i++) {
        const clt_loader_view *v = &p->row[i];
        const int32_t *x = *(int32_t *const *)(const void *)((const char *)v + offset);
        if (v->pads_left) x += p->T - width;
        clt_str_add(out, i > begin ? ",[" : "[");
        for (int64_t k = 0; k < width; k++) clt_str_addf(out, k ? ",%d" : "%d", x[k]);
        clt_str_add(out, "]");
    }
    clt_str_add(out, "]");
}

static void print_rank(const printer *p, int rank, int64_t rows, int64_t width, int64_t epoch, int64_t batch,
                       clt_str *out) {
    const int64_t begin = clt_lane_sample_begin(rows, p->split.lanes, clt_lane_begin(&p->split, rank)),
                  end = clt_lane_sample_begin(rows, p->split.lanes, clt_lane_begin(&p->split, rank + 1));
    out->len = 0;
    clt_str_addf(out, "{\"epoch\":%lld,\"batch\":%lld,\"rank\":%d,\"width\":%lld,\"sample_ids\":[",
                 (long long)epoch, (long long)batch, rank, (long long)width);
    for (int64_t i = begin; i < end; i++) {
        if (i > begin) clt_str_add(out, ",");
        clt_str_add(out, p->ids[i].s);
    }
    clt_str_add(out, "]");
    print_array("input_ids", p, offsetof(clt_loader_view, input_ids), begin, end, width, out);
    print_array("labels", p, offsetof(clt_loader_view, labels), begin, end, width, out);
    print_array("attention_mask", p, offsetof(clt_loader_view, attention_mask), begin, end, width, out);
    if (p->seq_ids)
        print_array("sequence_id", p, offsetof(clt_loader_view, sequence_id), begin, end, width, out);
    clt_str_add(out, "}");
    puts(out->s);
}

/* The columns of a batch as the reference cuts it. */
static int64_t find_width(const printer *p, int64_t rows, bool first) {
    const clt_finetune_config *f = &p->c->train.finetune;
    int64_t longest = 0;
    for (int64_t i = 0; i < rows; i++) longest = CLT_MAX(longest, p->row[i].tokens);
    const clt_finetune_trim trim = p->row[0].packed        ? CLT_TRIM_NONE
                                   : f->pad_to_longest     ? CLT_TRIM_LONGEST
                                   : f->allow_pad_trimming ? CLT_TRIM_MULTIPLE
                                                           : CLT_TRIM_NONE;
    return clt_finetune_width(trim, p->T, longest, first);
}

/* The batch of the rows at [at, at + rows), as every rank has its part. */
static clt_status print_batch(const printer *p, int64_t epoch, int64_t batch, int64_t at, int64_t rows,
                              int ranks, clt_str *out) {
    for (int64_t i = 0; i < rows; i++) {
        CLT_TRY(clt_loader_show(p->l, epoch, at + i, &p->row[i]));
        p->ids[i].len = 0;
        print_ids(&p->row[i], &p->ids[i]);
    }
    const int64_t width = find_width(p, rows, epoch == 0 && batch == 0);
    for (int k = 0; k < ranks; k++) print_rank(p, k, rows, width, epoch, batch, out);
    return CLT_OK;
}

/* --- all batches --- */

static clt_status print_epochs(const printer *p, const batch_options *opt) {
    const clt_config *c = p->c;
    const int64_t G = c->global_train_batch_size, most = c->train_subset_num_batches;
    int64_t each = clt_loader_batches(p->l, G, c->train.drop_last), printed = 0;
    clt_status st = CLT_OK;
    clt_str out = {0};
    if (most > 0) each = CLT_MIN(each, most);
    CLT_TRY(clt_config_check_batches(c, clt_loader_num_samples(p->l), each));
    const int64_t wanted = opt->batches ? opt->batches : each;
    for (int64_t epoch = opt->epoch; printed < wanted && st == CLT_OK; epoch++)
        for (int64_t b = 0; b < each && printed < wanted && st == CLT_OK; b++, printed++) {
            const int64_t rows = CLT_MIN(G, clt_loader_rows_of(p->l, epoch) - b * G);
            st = print_batch(p, epoch, b, b * G, rows, (int)opt->ranks, &out);
        }
    clt_str_free(&out);
    return st;
}

static clt_status allocate(printer *p) {
    const size_t rows = (size_t)p->c->global_train_batch_size, T = (size_t)p->T;
    p->arrays = clt_try_calloc(rows, 4 * T * sizeof *p->arrays);
    p->row = clt_try_calloc(rows, sizeof *p->row);
    p->ids = clt_try_calloc(rows, sizeof *p->ids);
    if (!p->arrays || !p->row || !p->ids)
        return clt_no_memory("the rows of a batch", rows * 4 * T * sizeof *p->arrays);
    for (size_t i = 0; i < rows; i++) {
        int32_t *at = p->arrays + i * 4 * T;
        p->row[i] = (clt_loader_view){
            .input_ids = at, .labels = at + T, .attention_mask = at + 2 * T, .sequence_id = at + 3 * T};
    }
    return CLT_OK;
}

static clt_status print_batches(const clt_config *c, const batch_options *opt) {
    clt_loader_params params;
    clt_plan plan = clt_plan_begin(c, (int)opt->ranks);
    printer p = {.c = c, .split = clt_plan_split(&plan), .T = c->max_seq_len};
    clt_config_loader_params(c, &c->train, (int)opt->ranks, &params);
    clt_status st = clt_loader_open(&params, &p.l);
    if (st == CLT_OK) st = allocate(&p);
    if (st == CLT_OK) {
        p.seq_ids = clt_loader_layout(p.l)->field[CLT_TEXT_SEQ_IDS].bytes > 0;
        st = print_epochs(&p, opt);
    }
    clt_loader_close(p.l);
    clt_plan_free(&plan);
    clt_free(p.arrays);
    clt_free(p.row);
    for (int64_t i = 0; p.ids && i < c->global_train_batch_size; i++) clt_str_free(&p.ids[i]);
    clt_free(p.ids);
    return st;
}

static clt_status load_and_print(const clt_strv *args, const batch_options *opt) {
    clt_config *c = NULL;
    clt_status st = clt_config_load(args->v[0], (const char *const *)args->v + 1, args->n - 1, &c);
    if (st == CLT_OK) st = clt_config_check_run(c, (int)opt->ranks);
    if (st == CLT_OK) st = print_batches(c, opt);
    clt_config_free(c);
    return st;
}

int data_batches(int argc, char **argv) {
    const int64_t most_ranks = 1 << 20;
    batch_options opt = {.ranks = 1};
    const clt_option options[] = {
        {"batches", 'n', CLT_OPT_INT, &opt.batches, "N",
         "batches to print, into the next epochs (default: an epoch)"},
        {"ranks", 0, CLT_OPT_INT, &opt.ranks, "R", "ranks of the run (default 1)"},
        {"epoch", 0, CLT_OPT_INT, &opt.epoch, "E", "first epoch, from 0"},
    };
    const clt_command command = {
        .name = "cltrain data batches",
        .usage = "CONFIG.yaml [key=value ...] [-n N] [--ranks R] [--epoch E]",
        .summary = "prints the batches that training sees, one JSON object a line for each batch and rank",
        .examples = "  cltrain data batches run.yaml -n 2 --ranks 4\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0) code = clt_options_fail(&command, "name a configuration file");
    if (code < 0 && (opt.batches < 0 || opt.epoch < 0 || opt.ranks < 1 || opt.ranks > most_ranks))
        code = clt_options_fail(&command, "--batches and --epoch are at least 0, --ranks at least 1");
    if (code < 0) code = clt_status_exit_code(load_and_print(&rest, &opt));
    clt_strv_free(&rest);
    return code;
}
