/* The operations of a growing text's next token: rows of linear.vt, attention_step.vt and block_step.vt pass
 * their checks, which compare with formulas in double, for every type and feature; calls that they cannot
 * compute are declined. The likeliest token is the first of the largest logits. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_ops.h"
#include "runtime/ops/clt_variant.h"
#include "test/test_util.h"

static clt_linear_params linear_call(clt_dtype type) {
    return (clt_linear_params){.rows = CLT_LINEAR_ROWS,
                               .n = 64,
                               .k = 64,
                               .x = {.ld = 64},
                               .w = {.ld = 64, .type = type},
                               .y = {.ld = 64}};
}

static clt_attention_step_params attention_call(clt_dtype type, int64_t head) {
    return (clt_attention_step_params){.rows = 1,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = head,
                                       .longest = 1,
                                       .room = 8,
                                       .cache = {.ld = 4 * head, .type = type},
                                       .window = -1};
}

/* With --tiny, too, rows are checked before use: that is what is tested here. */
static clt_ops *fast_ops(int device) {
    clt_ops_params p = clt_ops_params_default();
    clt_ops *ops;
    p.numerics = CLT_FAST;
    tu_assert_ok(clt_ops_create(tu_device(device), &p, &ops), "clt_ops_create");
    return ops;
}

/* The rows of an operation that this device has are forced in turn: the reason of a failure is printed. A
 * second CPU has none that the first one lacks. */
static void each_row(int device, const char *op, void (*use)(clt_ops *, const clt_variant *)) {
    if (tu_spare_cpu(device)) return;
    clt_ops *ops = fast_ops(device);
    int n = 0;
    clt_variant *row = clt_ops_variants(ops, op, &n);
    if (n == 0) print_message("[          ]   %s: no row can run on %s\n", op, tu_device_name(device));
    for (int i = 0; i < n; i++) {
        tu_assert_ok(clt_variant_force(ops, op, row[i].id), row[i].id);
        use(ops, &row[i]);
    }
    clt_ops_destroy(ops);
}

static void use_linear(clt_ops *ops, const clt_variant *row) {
    const bool on_cpu = clt_device_get_facts(clt_ops_device(ops))->type == CLT_DEVICE_CPU;
    for (int type = 0; type < CLT_DTYPE_COUNT; type++) {
        if (!clt_dtype_in((clt_dtype)type, (uint32_t)clt_variant_param(row, "TYPES", 7))) continue;
        /* a check takes long in an interpreter, and in a CPU's compiler */
        if ((tu_tiny() || (on_cpu && !tu_complete())) && type != CLT_BF16) continue;
        bool takes = false;
        const clt_linear_params p = linear_call((clt_dtype)type);
        tu_assert_ok(clt_op_linear_takes(ops, &p, &takes), row->id);
        if (!takes)
            fail_msg("linear=%s with weights in %s fails its check", row->id, clt_dtype_name(p.w.type));
    }
}

static void linear_is_right(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) each_row(d, "linear", use_linear);
}

static void use_attention(clt_ops *ops, const clt_variant *row) {
    clt_buffer *some;
    tu_assert_ok(clt_buffer_create(clt_ops_device(ops), 64, "present", &some), "buffer");
    const clt_ref present = {some, 0};
    clt_attention_step_params call[5];
    for (int i = 0; i < 5; i++) call[i] = attention_call((clt_dtype)(i % CLT_DTYPE_COUNT), i == 3 ? 80 : 64);
    call[0].rotated = 64;
    call[1].slopes = present;
    call[2].rotated = 16, call[2].temperature = present;
    call[3].window = 5, call[3].softcap = 30;
    call[4].shared = true, call[4].rotated = 32;
    for (int i = tu_tiny() ? 3 : 0; i < 5; i++) {
        bool takes = false;
        tu_assert_ok(clt_op_attention_step_takes(ops, &call[i], &takes), row->id);
        if (!takes) fail_msg("attention_step=%s fails its check of call %d", row->id, i);
    }
    clt_buffer_destroy(some);
}

static void attention_is_right(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) each_row(d, "attention_step", use_attention);
}

/* A block of Llama's form, or with `old` of MPT's. */
static clt_block_step_params block_call(clt_ref some, clt_dtype type, bool old) {
    const int64_t C = 640, F = 1792, H = 8, KV = old ? 8 : 2, D = 64;
    const clt_ref next = {some.buf, 16}, mid = {some.buf, 32}, at = {some.buf, 48}, hidden = {some.buf, 64};
    const clt_tensor x = clt_tensor_of(some, C, CLT_F32), w = clt_tensor_of(some, C, type);
    const clt_tensor v = old ? clt_tensor_vector(some, CLT_F32) : clt_tensor_none();
    clt_block_step_params b = {
        .qkv = {.rows = 1,
                .n = (H + 2 * KV) * D,
                .k = C,
                .norm = CLT_LINEAR_RMS_NORM,
                .x = x,
                .w = w,
                .bias = v},
        .out = {.rows = 1, .n = C, .k = H * D, .w = w, .bias = v, .residual = x},
        .hidden =
            {.rows = 1, .n = F, .k = C, .norm = CLT_LINEAR_RMS_NORM, .act = CLT_ACT_SILU, .w = w, .bias = v},
        .down = {.rows = 1, .n = C, .k = F, .w = w, .bias = v, .y = x},
        .attention = attention_call(type, D)};
    b.attention.heads = H, b.attention.kv_heads = KV, b.attention.cache.ld = 2 * KV * D;
    b.qkv.norm_w = b.hidden.norm_w = clt_tensor_vector(some, CLT_F32);
    b.qkv.norm_b = b.hidden.norm_b = v;
    b.qkv.y = b.attention.qkv = clt_tensor_of(next, b.qkv.n, CLT_F32);
    b.out.x = b.attention.o = clt_tensor_of(at, b.out.k, CLT_F32);
    b.out.y = b.hidden.x = b.down.residual = clt_tensor_of(mid, C, CLT_F32);
    b.hidden.y = b.down.x = clt_tensor_of(hidden, F, CLT_F32);
    b.out.w.ld = b.out.k, b.down.w.ld = F;
    if (old) {
        b.qkv.norm = b.hidden.norm = CLT_LINEAR_LAYER_NORM, b.hidden.act = CLT_ACT_GELU;
        b.attention.slopes = some, b.attention.window = 5;
    } else {
        b.hidden.gate = w, b.attention.rotated = D, b.attention.angles = some;
    }
    return b;
}

static void use_block(clt_ops *ops, const clt_variant *row) {
    clt_buffer *some;
    bool takes = true;
    tu_assert_ok(clt_buffer_create(clt_ops_device(ops), 1024, "present", &some), "buffer");
    for (int i = 0; i < 4; i++) {
        clt_block_step_params b = block_call((clt_ref){some, 0}, i % 2 ? CLT_F16 : CLT_BF16, i / 2);
        tu_assert_ok(clt_op_block_step_takes(ops, &b, &takes), row->id);
        if (takes != !strcmp(row->body, "grid"))
            fail_msg("block_step=%s %s block %d", row->id, takes ? "takes" : "fails its check of", i);
    }
    for (int i = 0; i < 5; i++) { /* each is not the call that passed */
        clt_block_step_params b = block_call((clt_ref){some, 0}, CLT_BF16, false);
        if (i == 0) b.hidden.rows = 2;
        if (i == 1) b.attention.shared = true;
        if (i == 2) b.down.residual = b.qkv.x;
        if (i == 3) b.out.w.type = CLT_F32;
        if (i == 4) b.qkv.w.ref.off = 4;
        tu_assert_ok(clt_op_block_step_takes(ops, &b, &takes), row->id);
        assert_false(takes);
    }
    clt_buffer_destroy(some);
}

static void block_is_right(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) each_row(d, "block_step", use_block);
}

static void others_are_declined(void **state) {
    (void)state;
    bool takes = true;
    clt_ops *fast = fast_ops(0);
    clt_linear_params l = linear_call(CLT_BF16);
    tu_assert_ok(clt_op_linear_takes(tu_ops(0), &l, &takes), "exact numerics");
    assert_false(takes);
    assert_int_equal(clt_op_linear(tu_ops(0), &l), CLT_FAIL);
    const bool forced =
        clt_variant_force(fast, "linear", "rows") == CLT_OK; /* devices of little local memory */
    l.k = 60;
    tu_assert_ok(clt_op_linear_takes(fast, &l, &takes), "60 columns");
    assert_false(takes);
    l.k = 64;
    tu_assert_ok(clt_op_linear_takes(fast, &l, &takes), "64 columns");
    if (forced) assert_true(takes);
    l.rows = CLT_LINEAR_ROWS + 1;
    tu_assert_ok(clt_op_linear_takes(fast, &l, &takes), "nine rows");
    assert_false(takes);
    l.rows = 1;
    assert_int_equal(clt_op_linear(fast, &l), CLT_FAIL); /* no x */
    clt_ops_destroy(fast);
    tu_release();
}

/* Rows of one column to several groups, of which few elements differ: the last of the equal ones from behind
 * is the first. */
static void greedy_row(int device, int64_t rows, int64_t cols, bool with_position) {
    const int64_t ld = cols + 3;
    float *x = tu_random((size_t)(rows * ld), (uint64_t)cols, 1.0f);
    int32_t want[4] = {0}, token[4], position[4] = {6, 0, 9, 1};
    for (int64_t i = 0; i < rows * ld; i++) x[i] = i % 11 == 4 ? NAN : floorf(50 * x[i]);
    for (int64_t r = 0; r < rows; r++) {
        float most = -INFINITY;
        for (int64_t c = cols - 1; c >= 0; c--)
            if (x[r * ld + c] >= most) most = x[r * ld + c], want[r] = (int32_t)c;
    }
    const clt_ref at = tu_upload_i32(device, position, 4), to = tu_blank(device, 4);
    tu_assert_ok(clt_op_greedy(tu_ops(device), rows, cols,
                               clt_tensor_of(tu_upload(device, x, (size_t)(rows * ld)), ld, CLT_F32), to,
                               with_position ? at : clt_ref_none()),
                 "greedy");
    memcpy(token, tu_download_i32(to, 4), sizeof token);
    assert_memory_equal(token, want, (size_t)rows * sizeof *want);
    memcpy(token, tu_download_i32(at, 4), sizeof token);
    for (int64_t r = 0; r < 4; r++) assert_int_equal(token[r], position[r] + (with_position && r < rows));
    tu_release();
    clt_free(x);
}

static void greedy_variant(int device, const char *id) {
    (void)id;
    static const int64_t size[][2] = {{1, 1}, {3, 2}, {2, 255}, {1, 2049}, {4, 4097}, {2, 50368}};
    for (size_t i = 0; i < CLT_COUNT_OF(size) - (tu_brief() ? 2 : 0); i++)
        greedy_row(device, size[i][0], size[i][1], i % 2);
}

static void greedy_is_right(void **state) {
    (void)state;
    tu_each_variant("greedy", greedy_variant);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(linear_is_right),
                                       cmocka_unit_test(attention_is_right), cmocka_unit_test(block_is_right),
                                       cmocka_unit_test(greedy_is_right),
                                       cmocka_unit_test(others_are_declined)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
