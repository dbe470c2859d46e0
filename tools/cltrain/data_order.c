/* cltrain data order: which rank gets which samples in which order, as JSON. */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/data_commands.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_order.h"

enum { MAX_SHARDS = 1 << 20 };

typedef struct {
    const char *spec, *shards, *algo, *partition;
    int64_t canonical, nodes, initial, ranks, batch, workers, seed, epoch, block, from;
    bool no_shuffle;
} order_options;

/* "5,4,6" */
static int parse_shards(const clt_command *c, const char *text, int64_t **sizes, size_t *n) {
    *sizes = clt_calloc(strlen(text) / 2 + 1, sizeof **sizes); /* the length of a command line */
    for (const char *s = text; *s;) {
        size_t len = strcspn(s, ",");
        char *number = clt_strndup(s, len);
        bool good = clt_parse_i64(number, &(*sizes)[*n]) && (*sizes)[*n] >= 0;
        clt_free(number);
        if (!good || ++*n > MAX_SHARDS)
            return clt_options_fail(c, "--shards %s must be sample counts like 5,4,6", text);
        s += len + (s[len] == ',');
    }
    return -1;
}

/* Shard sizes of a dataset on disk. */
static clt_status read_shards(const char *dir, int64_t **sizes, size_t *n) {
    clt_mds *m;
    CLT_TRY(clt_mds_open(dir, NULL, &m));
    *n = clt_mds_num_shards(m);
    *sizes = clt_try_calloc(*n, sizeof **sizes);
    for (size_t i = 0; i < *n && *sizes; i++) {
        clt_mds_shard s;
        clt_mds_shard_info(m, i, &s);
        (*sizes)[i] = s.samples;
    }
    clt_mds_close(m);
    return *sizes ? CLT_OK : clt_no_memory("the sizes of shards", *n * sizeof **sizes);
}

/* Batches of one rank; padding is skipped, and a batch of padding alone does not exist. */
static void print_batches(const int64_t *ids, int64_t count, int64_t batch, clt_str *out) {
    bool any = false;
    for (int64_t g = 0; g < count; g += batch) {
        bool open = false;
        for (int64_t s = 0; s < batch; s++) {
            if (ids[g + s] < 0) continue;
            clt_str_addf(out, open ? ",%lld" : any ? ",[%lld" : "[%lld", (long long)ids[g + s]);
            open = any = true;
        }
        if (open) clt_str_add(out, "]");
    }
}

static clt_status print_ranks(const order_options *opt, const int64_t *sizes, size_t n) {
    clt_order_params p;
    clt_order_world w = {opt->ranks, opt->batch, opt->epoch, opt->from};
    clt_order *o;
    clt_order_params_default(&p);
    p.shard_samples = sizes;
    p.num_shards = n;
    p.physical_nodes = opt->nodes;
    p.canonical_nodes = opt->canonical;
    p.initial_nodes = opt->initial;
    p.seed = (uint64_t)opt->seed;
    p.shuffle = !opt->no_shuffle;
    p.algo = opt->algo;
    p.partition_algo = opt->partition;
    p.block_size = opt->block;
    CLT_TRY(clt_order_create(&p, &o));
    clt_str out = {0};
    clt_status st = CLT_OK;
    clt_str_add(&out, "{\"ranks\":[");
    for (int64_t i = 0; i < opt->nodes * opt->ranks && st == CLT_OK; i++) {
        int64_t *ids = NULL, count = 0, node = i / opt->ranks, rank = i % opt->ranks;
        st = clt_order_rank(o, &w, node, rank, &ids, &count);
        clt_str_addf(&out, "%s{\"node\":%lld,\"rank_of_node\":%lld,\"batches\":[", i ? ",\n " : "",
                     (long long)node, (long long)rank);
        /* An id takes at most 20 bytes, and a batch three more. */
        const size_t room = 24 * (size_t)count;
        if (st == CLT_OK && !clt_str_try_reserve(&out, room))
            st = clt_no_memory("the sample ids of a rank", room);
        if (st == CLT_OK) print_batches(ids, count, opt->batch, &out);
        clt_str_add(&out, "]}");
        clt_free(ids);
    }
    if (st == CLT_OK) printf("%s]}\n", out.s);
    clt_str_free(&out);
    clt_order_destroy(o);
    return st;
}

static int check_options(const clt_command *c, const order_options *opt) {
    clt_shuffle_algo algo;
    if (clt_shuffle_parse(opt->algo, &algo) != CLT_OK) return clt_status_exit_code(CLT_USAGE);
    if (strcmp(opt->partition, "relaxed") != 0 && strcmp(opt->partition, "orig") != 0)
        return clt_options_fail(c, "--partition must be relaxed or orig");
    if (opt->nodes < 1 || opt->ranks < 1 || opt->batch < 1 || opt->nodes > 4096 || opt->ranks > 4096)
        return clt_options_fail(c, "--nodes and --ranks-per-node must be 1 to 4096, --batch at least 1");
    if (opt->canonical < 0 || opt->initial < 0 || opt->block < 0 || opt->from < 0 || opt->epoch < 0 ||
        opt->workers < 0 || opt->seed < 0)
        return clt_options_fail(c, "numbers must not be negative");
    return -1;
}

/* A configuration is a file, a dataset a folder or a URL. */
static bool is_config(const clt_strv *rest) {
    return rest->n > 0 && clt_io_is_file(rest->v[0]);
}

static int run(const clt_command *c, const order_options *opt, const clt_strv *rest) {
    int64_t *sizes = NULL;
    size_t n = 0;
    int code = check_options(c, opt);
    if (code < 0 && opt->spec) {
        if (rest->n > 0 || opt->shards) return clt_options_fail(c, "--spec takes no folder and no --shards");
        clt_status st = data_order_spec(opt->spec);
        return clt_status_exit_code(st == CLT_BAD_CONFIG ? CLT_BAD_DATA : st);
    }
    if (code < 0 && !opt->shards && is_config(rest))
        return clt_status_exit_code(
            data_order_config((const char *const *)rest->v, rest->n, (int)opt->ranks, opt->epoch));
    if (code < 0 && (rest->n > 1 || (rest->n == 1) == (opt->shards != NULL)))
        code = clt_options_fail(c, "give a configuration file, one dataset folder or --shards");
    if (code < 0 && opt->shards) code = parse_shards(c, opt->shards, &sizes, &n);
    if (code < 0) {
        clt_status st = opt->shards ? CLT_OK : read_shards(rest->v[0], &sizes, &n);
        if (st == CLT_OK) st = print_ranks(opt, sizes, n);
        /* A case that the reference refuses is bad data: there is no configuration file. */
        code = clt_status_exit_code(st == CLT_BAD_CONFIG ? CLT_BAD_DATA : st);
    }
    clt_free(sizes);
    return code;
}

int data_order(int argc, char **argv) {
    order_options opt = {
        .algo = "py1e", .partition = "relaxed", .nodes = 1, .ranks = 1, .batch = 1, .seed = 9176};
    const clt_option options[] = {
        {"shards", 0, CLT_OPT_STR, &opt.shards, "LIST",
         "samples of each shard, like 5,4,6, instead of a folder"},
        {"canonical-nodes", 0, CLT_OPT_INT, &opt.canonical, "N",
         "num_canonical_nodes (default: as StreamingDataset)"},
        {"nodes", 0, CLT_OPT_INT, &opt.nodes, "N", "physical nodes (default 1)"},
        {"ranks-per-node", 0, CLT_OPT_INT, &opt.ranks, "N", "ranks of each node (default 1)"},
        {"ranks", 'n', CLT_OPT_INT, &opt.ranks, "N",
         "ranks of the run, with CONFIG.yaml; else as --ranks-per-node"},
        {"batch", 'b', CLT_OPT_INT, &opt.batch, "N", "batch size of a rank (default 1)"},
        {"workers", 0, CLT_OPT_INT, &opt.workers, "N", "DataLoader workers; never changes the order"},
        {"seed", 0, CLT_OPT_INT, &opt.seed, "N", "shuffle_seed (default 9176)"},
        {"epoch", 0, CLT_OPT_INT, &opt.epoch, "N", "epoch, from 0"},
        {"algo", 0, CLT_OPT_STR, &opt.algo, "NAME", "naive, py1s, py1e (default), py1br or py2s"},
        {"block-size", 0, CLT_OPT_INT, &opt.block, "N", "shuffle_block_size (default: as StreamingDataset)"},
        {"partition", 0, CLT_OPT_STR, &opt.partition, "NAME", "relaxed (default) or orig"},
        {"initial-nodes", 0, CLT_OPT_INT, &opt.initial, "N",
         "physical nodes of the first run, when this resumes one"},
        {"from", 0, CLT_OPT_INT, &opt.from, "SAMPLE", "samples of the epoch that were already seen"},
        {"spec", 0, CLT_OPT_STR, &opt.spec, "FILE",
         "one case over several streams, as JSON; other options are ignored"},
        {"no-shuffle", 0, CLT_OPT_FLAG, &opt.no_shuffle, NULL, "the order without a shuffle"},
    };
    const clt_command command = {
        .name = "cltrain data order",
        .usage = "(CONFIG.yaml [key=value ...] | DIR | --shards LIST | --spec FILE) [options]",
        .summary = "prints the sample ids of every batch of every rank, as JSON",
        .examples = "  cltrain data order run.yaml --ranks 4 --epoch 1        what training sees\n"
                    "  cltrain data order data/train --batch 8\n"
                    "  cltrain data order --shards 5,4,6 --canonical-nodes 2 --ranks-per-node 2 --batch 4\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0) code = run(&command, &opt, &rest);
    clt_strv_free(&rest);
    return code;
}
