/* AdamW, Lion and SGD over pieces of the slab: every variant on every device compared with the oracle, and
 * the oracle with the published formulas in double. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/device/clt_slab.h"
#include "runtime/ops/ref/clt_ref.h"

enum { GROUPS = 3, BLOCK = 64 };

/* As in the trainer: in double, rounded once. Group 2 is frozen; group 1 has no weight decay, and Nesterov's
 * momentum. */
static void make_groups(clt_optimizer_group g[GROUPS], int step) {
    const double lr0 = 2e-3, lr = 1.5e-3, b1 = 0.9, b2 = 0.95, wd = 0.01;
    for (int i = 0; i < GROUPS; i++) {
        g[i] = tu_adam_group(lr, b1, b2, 1e-8, step);
        if (i != 1) g[i].decay = (float)(1.0 - lr / lr0 * wd);
        g[i].frozen = i == 2 ? 1.0f : 0.0f;
        g[i].l2 = i == 1 ? 0.0f : (float)wd;
        g[i].nesterov = i == 1 ? 1.0f : 0.0f;
    }
}

typedef struct {
    size_t n;
    float *p, *g, *m, *v;
    uint8_t *block;
} host_state;

static host_state make_state(uint64_t chunks, bool extreme) {
    host_state s = {.n = chunks * CLT_CHUNK};
    s.p = tu_random(s.n, 2, 1.0f);
    s.g = extreme ? tu_extreme(s.n, 3) : tu_random(s.n, 4, 1e-2f);
    s.m = extreme ? tu_extreme(s.n, 5) : tu_random(s.n, 6, 1e-2f);
    s.v = extreme ? tu_extreme(s.n, 7) : tu_random(s.n, 8, 1e-2f);
    for (size_t i = 0; i < s.n; i++) s.v[i] = fabsf(s.v[i]);
    s.block = clt_malloc(s.n / BLOCK);
    for (size_t i = 0; i < s.n / BLOCK; i++) s.block[i] = (uint8_t)(tu_random_word(9, i) % GROUPS);
    return s;
}

static void free_state(host_state *s) {
    clt_free(s->p);
    clt_free(s->g);
    clt_free(s->m);
    clt_free(s->v);
    clt_free(s->block);
}

static void expect(const char *what, clt_ref r, const float *want, size_t n) {
    tu_assert_words(what, tu_download(r, n), want, n);
}

typedef enum { ADAMW, LION, SGD, KINDS } kind;

/* One step; flag 0: nothing may change. copy_type: a clt_dtype, or -1: no copy. */
static void optimizer_case(int d, kind k, uint64_t chunks, bool extreme, float flag, int copy_type) {
    host_state s = make_state(chunks, extreme);
    clt_optimizer_group group[GROUPS];
    make_groups(group, 3);
    float status[3] = {2.5f, 0.37f, flag};
    clt_ref block = tu_upload_at(d, s.block, s.n / BLOCK / 4, TU_OFFSET);
    clt_optimizer_params p = {.chunks = chunks,
                              .p = tu_upload(d, s.p, s.n),
                              .g = tu_upload(d, s.g, s.n),
                              .m = tu_upload(d, s.m, s.n),
                              .v = tu_upload(d, s.v, s.n),
                              .groups =
                                  tu_upload(d, (float *)group, GROUPS * (sizeof *group / sizeof(float))),
                              .group_of_block = {block.buf, block.off * 4},
                              .status = tu_upload(d, status, 3)};
    float *copy = tu_random(s.n, 13, 1.0f);
    const clt_dtype type = copy_type < 0 ? CLT_F32 : (clt_dtype)copy_type;
    if (copy_type >= 0) p.copy = clt_tensor_vector(tu_upload_rounded(d, type, copy, s.n), type);
    clt_status (*const op[])(clt_ops *, const clt_optimizer_params *) = {clt_op_adamw, clt_op_lion,
                                                                         clt_op_sgd};
    tu_assert_ok(op[k](tu_ops(d), &p), "optimizer");
    for (size_t b = 0; flag == 1.0f && b < s.n / BLOCK; b++) {
        size_t i = b * BLOCK;
        const clt_optimizer_group *g = &group[s.block[b]];
        if (k == ADAMW) clt_ref_adamw(BLOCK, s.p + i, s.g + i, s.m + i, s.v + i, g, status[1]);
        if (k == LION) clt_ref_lion(BLOCK, s.p + i, s.g + i, s.m + i, g, status[1]);
        if (k == SGD) clt_ref_sgd(BLOCK, s.p + i, s.g + i, s.m + i, g, status[1]);
    }
    if (flag == 1.0f) memcpy(copy, s.p, s.n * sizeof *copy);
    clt_ref_round(type, copy, s.n);
    if (copy_type >= 0) tu_assert_words("copy", tu_download_as(p.copy.ref, type, s.n), copy, s.n);
    clt_free(copy);
    expect("weights", p.p, s.p, s.n);
    expect("gradients", p.g, s.g, s.n);
    expect("first moment", p.m, s.m, s.n);
    expect("second moment", p.v, s.v, s.n);
    tu_release();
    free_state(&s);
}

static void run_variant(int d, const char *id) {
    (void)id;
    for (kind k = ADAMW; k < KINDS; k++) {
        optimizer_case(d, k, 1, false, 1.0f, -1);
        if (tu_tiny()) continue;
        optimizer_case(d, k, 3, true, 1.0f, CLT_BF16);
        optimizer_case(d, k, 1, true, 1.0f, CLT_F16);
        optimizer_case(d, k, 1, false, 0.0f, CLT_BF16);
    }
}

static void optimizers_match(void **state) {
    (void)state;
    tu_each_variant("optimizer", run_variant);
}

/* Five steps of AdamW by its formula in double. */
static void adamw_follows_its_formula(void **state) {
    (void)state;
    enum { N = 200, STEPS = 5 };
    float *p = tu_random(N, 2, 1.0f), m[N] = {0}, v[N] = {0};
    double dp[N], dm[N] = {0}, dv[N] = {0};
    const double lr0 = 2e-3, lr = 1.5e-3, b1 = 0.9, b2 = 0.95, wd = 0.01, clip = 0.5;
    for (int i = 0; i < N; i++) dp[i] = p[i];
    for (int t = 1; t <= STEPS; t++) {
        clt_optimizer_group g[GROUPS];
        make_groups(g, t);
        float *grad = tu_random(N, 10 + (uint64_t)t, 0.1f);
        clt_ref_adamw(N, p, grad, m, v, &g[0], (float)clip);
        for (int i = 0; i < N; i++) {
            double x = grad[i] * clip + wd * dp[i]; /* group 0 also has l2 */
            dp[i] *= 1.0 - lr / lr0 * wd;
            dm[i] = b1 * dm[i] + (1 - b1) * x;
            dv[i] = b2 * dv[i] + (1 - b2) * x * x;
            dp[i] -= lr / (1 - pow(b1, t)) * dm[i] / (sqrt(dv[i]) / sqrt(1 - pow(b2, t)) + 1e-8);
        }
        clt_free(grad);
    }
    tu_assert_close("AdamW", p, dp, N, 1e-6);
    clt_free(p);
}

static void lion_follows_its_formula(void **state) {
    (void)state;
    enum { N = 200, STEPS = 5 };
    float *p = tu_random(N, 2, 1.0f), m[N] = {0};
    double dp[N], dm[N] = {0};
    const double lr0 = 2e-3, lr = 1.5e-3, b1 = 0.9, b2 = 0.95, wd = 0.01;
    for (int i = 0; i < N; i++) dp[i] = p[i];
    for (int t = 1; t <= STEPS; t++) {
        clt_optimizer_group g[GROUPS];
        make_groups(g, t);
        float *grad = tu_random(N, 20 + (uint64_t)t, 0.1f);
        grad[7] = 0.0f; /* sign 0: only the decay changes it */
        clt_ref_lion(N, p, grad, m, &g[0], 1.0f);
        for (int i = 0; i < N; i++) {
            double u = dm[i] + (1 - b1) * (grad[i] - dm[i]);
            dp[i] = dp[i] * (1.0 - lr / lr0 * wd) - lr * ((u > 0) - (u < 0));
            dm[i] += (1 - b2) * (grad[i] - dm[i]);
        }
        clt_free(grad);
    }
    tu_assert_close("Lion", p, dp, N, 1e-6);
    clt_free(p);
}

/* PyTorch's rule: weight decay joins the gradient; Nesterov's step looks ahead by one momentum. */
static void sgd_follows_its_formula(void **state) {
    (void)state;
    enum { N = 200, STEPS = 5 };
    const double lr = 1.5e-3, momentum = 0.9, wd = 0.01, clip = 0.5;
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        float *p = tu_random(N, 2, 1.0f), m[N] = {0};
        double dp[N], dm[N] = {0};
        for (int i = 0; i < N; i++) dp[i] = p[i];
        for (int t = 1; t <= STEPS; t++) {
            clt_optimizer_group g[GROUPS];
            make_groups(g, t);
            float *grad = tu_random(N, 30 + (uint64_t)t, 0.1f);
            clt_ref_sgd(N, p, grad, m, &g[nesterov], (float)clip);
            for (int i = 0; i < N; i++) {
                const double x = grad[i] * clip + (nesterov ? 0 : wd) * dp[i];
                dm[i] = t == 1 ? x : momentum * dm[i] + x;
                dp[i] -= lr * (nesterov ? x + momentum * dm[i] : dm[i]);
            }
            clt_free(grad);
        }
        tu_assert_close(nesterov ? "SGD, Nesterov" : "SGD", p, dp, N, 1e-6);
        clt_free(p);
    }
}

static void idle_moments_become_zero(void **state) {
    (void)state;
    clt_optimizer_group g[GROUPS];
    make_groups(g, 100);
    float p = 1.0f, grad = 0.0f, m = 1e-30f, v = 1e-36f;
    for (int t = 0; t < 400; t++) {
        clt_ref_adamw(1, &p, &grad, &m, &v, &g[1], 1.0f);
        assert_true(m == 0.0f || m >= 0x1p-126f);
        assert_true(v == 0.0f || v >= 0x1p-126f);
    }
    assert_true(m == 0.0f && v == 0.0f && !signbit(m));
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_its_formula), cmocka_unit_test(lion_follows_its_formula),
        cmocka_unit_test(sgd_follows_its_formula),   cmocka_unit_test(idle_moments_become_zero),
        cmocka_unit_test(optimizers_match),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
