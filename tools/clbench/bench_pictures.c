/* clbench pictures: how fast the loader of pictures reads a data set. */
#include <string.h>
#include <time.h>

#include "runtime/data/clt_loader.h"
#include "tools/clbench/bench.h"

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One epoch of batches, each requested when the one before it has come. */
static clt_status read_epoch(clt_loader *l, int64_t epoch, int64_t batch) {
    const int64_t n = clt_loader_num_samples(l);
    const double start = clt_now(), before = cpu_seconds();
    for (int64_t at = 0; at < n; at += batch) {
        clt_batch b;
        CLT_TRY(clt_loader_get(l, epoch, at, CLT_MIN(batch, n - at), &b));
    }
    const double seconds = clt_now() - start, cpu = cpu_seconds() - before;
    printf("{\"pictures\": %lld, \"seconds\": %.4f, \"per_s\": %.1f, \"per_cpu_s\": %.1f}\n", (long long)n,
           seconds, (double)n / seconds, (double)n / cpu);
    return CLT_OK;
}

static clt_status run(const clt_loader_params *p, int64_t passes) {
    clt_loader *l;
    CLT_TRY(clt_loader_open(p, &l));
    clt_status st = CLT_OK;
    for (int64_t i = 0; i < passes && st == CLT_OK; i++) st = read_epoch(l, i, p->max_rows);
    clt_loader_close(l);
    return st;
}

int bench_pictures(int argc, char **argv) {
    int64_t passes = 3, threads = 0, size = 224, batch = 64;
    bool eval = false, mix = false;
    clt_loader_params p;
    clt_loader_params_default(&p);
    const clt_option options[] = {
        {"size", 0, CLT_OPT_INT, &size, "N", "height and width of the result (224)"},
        {"batch", 0, CLT_OPT_INT, &batch, "N", "pictures of a request (64)"},
        {"threads", 0, CLT_OPT_INT, &threads, "N", "threads that decode; 0: one for each CPU (0)"},
        {"eval", 0, CLT_OPT_FLAG, &eval, NULL, "resize and centre instead of a random part and a flip"},
        {"mix", 0, CLT_OPT_FLAG, &mix, NULL, "with mixup and cutmix"},
        {"passes", 0, CLT_OPT_INT, &passes, "N", "read the data set so many times (3)"},
    };
    const clt_command command = {.name = "clbench pictures",
                                 .usage = "FOLDER [options]",
                                 .summary =
                                     "measures how fast pictures become batches: MDS shards, or a folder "
                                     "for each class",
                                 .examples = "  clbench pictures imagenet/val --threads 1 --eval\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv files = {0};
    int code = clt_options_parse(&command, argc, argv, &files);
    if (code < 0 && (files.n != 1 || size < 1 || size > 1 << 14 || batch < 1))
        code = clt_options_fail(&command, "name one folder; size and batch must be at least 1");
    if (code < 0) {
        p.local = files.v[0];
        p.images = true;
        p.shuffle = !eval;
        p.eval = eval;
        p.max_rows = p.global_batch = batch;
        p.image.threads = (int)threads;
        p.image.transform.size = size;
        p.image.transform.random_crop = !eval;
        p.image.transform.flip = eval ? 0 : 0.5;
        p.image.mix.mixup = p.image.mix.cutmix = mix ? 1 : 0;
        code = clt_status_exit_code(run(&p, passes));
    }
    clt_strv_free(&files);
    return code;
}
