/* cltrain data order CONFIG.yaml: the sample ids by rank and batch that training with the configuration sees,
 * as JSON. */
#include <string.h>

#include "tools/cltrain/data_commands.h"
#include "collectives/clt_lanes.h"
#include "runtime/data/clt_loader.h"
#include "runtime/train/config/clt_config.h"
#include "runtime/train/engine/clt_plan.h"

/* The batches of one rank, which has neighbouring lanes. */
static clt_status print_rank(clt_loader *l, const clt_config *c, const clt_lane_split *s, int rank,
                             int64_t epoch) {
    const int first = clt_lane_begin(s, rank), last = clt_lane_begin(s, rank + 1);
    const int64_t G = c->global_train_batch_size, N = clt_loader_num_samples(l),
                  batches = clt_loader_batches(l, G, c->train.drop_last);
    int64_t *ids = clt_calloc((size_t)G, sizeof *ids);
    clt_status st = CLT_OK;
    printf("%s{\"rank\":%d,\"node\":0,\"rank_of_node\":%d,\"batches\":[", rank ? ",\n " : "", rank, rank);
    for (int64_t g = 0; g < batches && st == CLT_OK; g++) {
        const int64_t samples = CLT_MIN(G, N - g * G),
                      begin = clt_lane_sample_begin(samples, s->lanes, first),
                      end = clt_lane_sample_begin(samples, s->lanes, last);
        st = clt_loader_ids(l, epoch, g * G + begin, end - begin, ids);
        printf(g ? ",[" : "[");
        for (int64_t i = 0; i < end - begin && st == CLT_OK; i++)
            printf(i ? ",%lld" : "%lld", (long long)ids[i]);
        printf("]");
    }
    printf("]}");
    clt_free(ids);
    return st;
}

static clt_status print_order(const clt_config *c, int ranks, int64_t epoch) {
    clt_loader_params p;
    clt_loader *l;
    clt_config_loader_params(c, &c->train, ranks, &p);
    CLT_TRY(clt_loader_open(&p, &l));
    clt_plan plan = clt_plan_begin(c, ranks);
    const clt_lane_split split = clt_plan_split(&plan);
    int64_t id;
    clt_status st = CLT_OK; /* what the order of an epoch refuses is known before anything is printed */
    if (clt_loader_num_samples(l) > 0) st = clt_loader_ids(l, epoch, 0, 1, &id);
    if (st == CLT_OK) printf("{\"ranks\":[");
    for (int k = 0; k < ranks && st == CLT_OK; k++) st = print_rank(l, c, &split, k, epoch);
    if (st == CLT_OK) printf("]}\n");
    clt_plan_free(&plan);
    clt_loader_close(l);
    return st;
}

clt_status data_order_config(const char *const *args, size_t n, int ranks, int64_t epoch) {
    clt_config *c = NULL;
    clt_status st = clt_config_load(args[0], args + 1, n - 1, &c);
    if (st == CLT_OK) st = clt_config_check_run(c, ranks);
    if (st == CLT_OK) st = print_order(c, ranks, epoch);
    clt_config_free(c);
    return st;
}
