/* OpenBLAS for comparison, loaded on request with the core type that is fastest here. (Its own choice is not:
 * on some processors it uses kernels for half the vector width.) A core type applies to a whole process, so
 * each is tried in its own process, which may also die of an instruction that the processor lacks. */
#include "tools/clbench/bench.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void sgemm_fn(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };

static sgemm_fn *sgemm;
static char core[64] = "own choice";

static bool load(int threads) {
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return false;
    void (*set_threads)(int);
    const char *(*core_name)(void);
    *(void **)&sgemm = dlsym(lib, "cblas_sgemm");
    *(void **)&set_threads = dlsym(lib, "openblas_set_num_threads");
    *(void **)&core_name = dlsym(lib, "openblas_get_corename");
    if (set_threads && threads > 0) set_threads(threads);
    if (core_name) snprintf(core, sizeof core, "%s", core_name());
    return sgemm != NULL;
}

int anchor_openblas_rate(void) {
    enum { N = 384, ROUNDS = 60 }; /* about a millisecond each: at least one runs undisturbed */
    if (!load(1)) return 1;
    float *x = clt_aligned_alloc(3 * N * N * sizeof *x);
    double best = 1e30;
    for (int r = 0; r < ROUNDS; r++) {
        const double start = clt_now();
        sgemm(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, N, N, N, 1, x, N, x + N * N, N, 0, x + 2 * N * N, N);
        best = CLT_MIN(best, clt_now() - start);
    }
    clt_free(x);
    printf("%.3f\n", 2.0 * N * N * N / best * 1e-9);
    return 0;
}

static double rate_of(const char *type) {
    char line[64];
    double rate = 0;
    setenv("OPENBLAS_CORETYPE", type, 1);
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return 0;
    self[n] = 0;
    char *command = clt_format("'%s' openblas-rate 2>/dev/null", self);
    FILE *f = popen(command, "r");
    clt_free(command);
    if (!f) return 0;
    if (!fgets(line, sizeof line, f) || !clt_parse_f64(strtok(line, "\n"), &rate)) rate = 0;
    pclose(f);
    return rate;
}

bool anchor_openblas_load(const clt_device_facts *f) {
    /* Its threads spin for 2^26 cycles after a call, on the cores that our kernel is measured on next; 2^4 is
     * the minimum. */
    setenv("OPENBLAS_THREAD_TIMEOUT", "4", 1);
    static const struct {
        const char *name;
        uint32_t bits; /* of its registers */
    } types[] = {{"Haswell", 256}, {"Zen", 256}, {"SkylakeX", 512}, {"Cooperlake", 512}};
    /* The caller's environment may name a core type for another processor, so it is ignored. */
    const char *best = NULL;
    double most = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(types); i++) {
        const double rate = !f->vector_bits || types[i].bits <= f->vector_bits ? rate_of(types[i].name) : 0;
        if (rate > most * 1.02) best = types[i].name, most = rate;
    }
    if (best)
        setenv("OPENBLAS_CORETYPE", best, 1);
    else
        unsetenv("OPENBLAS_CORETYPE");
    return load((int)f->compute_units);
}

const char *anchor_openblas_core(void) {
    return core;
}

void anchor_openblas(const anchor_shape *s, const float *a, const float *b, float *c) {
    sgemm(ROW_MAJOR, s->trans_a ? TRANSPOSE : NO_TRANSPOSE, s->trans_b ? TRANSPOSE : NO_TRANSPOSE, (int)s->m,
          (int)s->n, (int)s->k, 1.0f, a, (int)s->lda, b, (int)s->ldb, s->beta, c, (int)s->ldc);
}
