/* The memory of sharded runs and the choice of a stage. The oracle: the sizes of one model, written out by
 * hand in chunks of the slab's layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/engine/clt_plan.h"
#include "test/thread_group.h"

#define BASE "test/golden/mpt-learned/train.yaml"
#define MODEL                                                                                                \
    "model={d_model: 1024, n_heads: 16, n_layers: 6, vocab_size: 4096, no_bias: true, max_seq_len: 64}"
enum { RANKS = 4 };

/* Layout of MODEL in chunks of 65,536 elements: wte 64, wpe 1; a block: norm_1 1 (1,024 elements and
 * padding), Wqkv 48, out_proj 16, norm_2 1, up_proj 64, down_proj 64; norm_f 1. */
static const uint64_t C = 65536 * 4; /* bytes of a chunk in fp32 */
enum { FIRST = 65, BLOCK = 194, LAST = 1, TOTAL = FIRST + 6 * BLOCK + LAST };
/* Chunks of the places that units take turns in: gradients of three blocks, weights of four. */
enum { GRADIENTS = FIRST + LAST + 3 * BLOCK, GATHERED = FIRST + LAST + 4 * BLOCK };
/* Read in fp32 by 16-bit runs: wte, wpe, 13 norms. */
enum { WIDE = 4096 * 1024 + 64 * 1024 + 13 * 1024 };

/* Chunks of the rank that owns most; at most its share and one atom of 16 chunks. */
static uint64_t owned_chunks(const clt_config *c) {
    clt_slab_table t = {0};
    clt_shards s;
    uint64_t most = 0;
    assert_int_equal(clt_model_table(c->model, &t), CLT_OK);
    assert_int_equal(clt_shards_create(&t, RANKS, NULL, &s), CLT_OK);
    for (int r = 0; r < RANKS; r++) most = CLT_MAX(most, clt_shards_owned(&s, r));
    assert_true(4 * most >= t.total && most <= t.total / 4 + 17 * 65536);
    clt_shards_free(&s);
    clt_slab_table_free(&t);
    return most / 65536;
}

static clt_config *load(const char *const *more, size_t n) {
    const char *over[8] = {MODEL};
    clt_config *c = NULL;
    memcpy(over + 1, more, n * sizeof *more);
    if (clt_config_load(BASE, over, n + 1, &c) != CLT_OK) fail_msg("%s", clt_last_error());
    return c;
}
#define LOAD(...)                                                                                            \
    load((const char *[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(const char *))

static clt_plan_room room_of(uint64_t capacity) {
    return (clt_plan_room){.type = CLT_DEVICE_CPU, .capacity = capacity, .max_alloc = UINT64_MAX};
}

static clt_plan plan_at(const clt_config *c, int stage, uint64_t capacity) {
    const clt_plan_room room = room_of(capacity);
    clt_plan p = clt_plan_begin(c, RANKS);
    bool fits;
    assert_int_equal(clt_plan_fit_stage(c, &room, stage, &p, &fits), CLT_OK);
    assert_int_equal(fits, p.memory.total <= capacity);
    assert_int_equal(p.stage, stage);
    assert_int_equal(p.shard_ranks * p.replicas, RANKS);
    clt_plan_free(&p);
    return p;
}

/* --- memory --- */

typedef struct {
    uint64_t weights, copy, gradients, optimizer;
} use;

static void check_uses(const clt_config *c, const use *want) {
    for (int stage = 0; stage <= CLT_MOST_STAGE; stage++) {
        const clt_plan_memory m = plan_at(c, stage, UINT64_MAX).memory;
        const use *w = &want[stage];
        const uint64_t sum = m.weights + m.copy + m.gradients + m.optimizer + m.reduction + m.model.total;
        assert_int_equal(m.weights, w->weights);
        assert_int_equal(m.copy, w->copy);
        assert_int_equal(m.gradients, w->gradients);
        assert_int_equal(m.optimizer, w->optimizer);
        assert_int_equal(m.total, sum);
        assert_int_equal(m.elements, TOTAL * 65536);
    }
}

/* Microbatches are added to one sum of a rank's part. */
static void sixteen_bit_runs(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16");
    const uint64_t own = owned_chunks(c), groups = TOTAL * 1024; /* bytes */
    const uint64_t part = own * C + 4 * WIDE, moments = 2 * own * C + groups;
    const use want[] = {{TOTAL * C, TOTAL * C / 2, TOTAL * C, 2 * TOTAL * C + groups},
                        {part, TOTAL * C / 2, TOTAL * C, moments},
                        {part, TOTAL * C / 2, (own + GRADIENTS) * C, moments},
                        {part, (own + GATHERED) * C / 2, (own + GRADIENTS) * C, moments}};
    check_uses(c, want);
    clt_config_free(c);
    c = LOAD("precision=amp_bf16", "fsdp_config={limit_all_gathers: false}");
    assert_int_equal(plan_at(c, 3, UINT64_MAX).memory.copy, (own + FIRST + LAST + 6 * BLOCK) * C / 2);
    clt_config_free(c);
}

/* Two lanes a rank, each of one sample: two whole slabs, or one sum of a rank's part, because the first round
 * of four lanes completes half of the tree over eight. Lion has one moment. */
static void exact_fp32_runs(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=fp32", "optimizer.name=decoupled_lionw");
    const uint64_t own = owned_chunks(c), groups = TOTAL * 1024, part = own * C + groups;
    const uint64_t sharded = (own + GRADIENTS) * C;
    const use want[] = {{TOTAL * C, 0, 2 * TOTAL * C, TOTAL * C + groups},
                        {TOTAL * C, 0, 2 * TOTAL * C, part},
                        {TOTAL * C, 0, sharded, part},
                        {(own + GATHERED) * C, 0, sharded, part}};
    check_uses(c, want);
    clt_config_free(c);
}

/* The largest buffer: at stage 1 a block's largest tensor, with sharded gradients a whole block. */
static void places_are_one_buffer_each(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16");
    assert_int_equal(plan_at(c, 1, UINT64_MAX).memory.largest, 64 * C);
    for (int s = 2; s <= CLT_MOST_STAGE; s++)
        assert_int_equal(plan_at(c, s, UINT64_MAX).memory.largest, BLOCK * C);
    clt_config_free(c);
}

/* An untied head lies in the last unit. */
static void untied_heads_have_places_of_their_own(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16", "model.tie_word_embeddings=false");
    const clt_plan_memory m = plan_at(c, 2, UINT64_MAX).memory;
    assert_int_equal(m.elements, (TOTAL + 64) * 65536);
    assert_int_equal(m.gradients, (owned_chunks(c) + GRADIENTS + 64) * C);
    clt_config_free(c);
}

/* Chunks of the rank of a group of two that keeps most: what two owners own together. */
static uint64_t kept_chunks(const clt_config *c) {
    clt_slab_table t = {0};
    clt_shards s;
    uint64_t most = 0;
    assert_int_equal(clt_model_table(c->model, &t), CLT_OK);
    assert_int_equal(clt_shards_create(&t, RANKS, NULL, &s), CLT_OK);
    for (int r = 0; r < RANKS / 2; r++)
        most = CLT_MAX(most, clt_shards_owned(&s, r) + clt_shards_owned(&s, r + RANKS / 2));
    assert_true(2 * most >= t.total && most <= t.total / 2 + 34 * 65536);
    clt_shards_free(&s);
    clt_slab_table_free(&t);
    return most / 65536;
}

#define GROUPS_OF_TWO(strategy) "fsdp_config={sharding_strategy: " strategy ", data_parallel_shard_degree: 2}"

/* Only the weights that units are gathered from are sharded inside groups. */
static void groups_keep_weights(void **state) {
    (void)state;
    const char *const hybrid = GROUPS_OF_TWO("HYBRID_SHARD");
    for (int narrow = 0; narrow < 2; narrow++) {
        const char *precision = narrow ? "precision=amp_bf16" : "precision=fp32";
        clt_config *c = LOAD(precision, hybrid), *full = LOAD(precision, "fsdp_config={}");
        const uint64_t own = owned_chunks(c), kept = kept_chunks(c);
        const clt_plan p = plan_at(c, 3, UINT64_MAX);
        const clt_plan_memory m = p.memory, all = plan_at(full, 3, UINT64_MAX).memory;
        assert_true(kept > own);
        assert_int_equal(p.shard_ranks, 2);
        assert_int_equal(m.weights, narrow ? own * C + 4 * WIDE : (kept + GATHERED) * C);
        assert_int_equal(m.copy, narrow ? (kept + GATHERED) * C / 2 : 0);
        assert_int_equal(m.gradients, all.gradients);
        assert_int_equal(m.optimizer, all.optimizer);
        assert_int_equal(m.reduction, all.reduction);
        clt_config_free(c);
        clt_config_free(full);
    }
}

/* Four places of 32 chunks of each tensor of state. */
enum { PASSING = 4 * 32 };

/* The host has moments and in 16-bit runs the fp32 weights. */
static void offloaded_state_is_in_host_memory(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16", "cltrain.offload=host");
    const uint64_t own = owned_chunks(c), groups = TOTAL * 1024;
    for (int stage = 0; stage <= CLT_MOST_STAGE; stage++) {
        const clt_plan_memory m = plan_at(c, stage, UINT64_MAX).memory;
        assert_int_equal(m.host, 3 * (stage ? own : TOTAL) * C);
        assert_int_equal(m.weights, 4 * WIDE);
        assert_int_equal(m.optimizer, groups + 3 * PASSING * C);
    }
    clt_config_free(c);
    c = LOAD("precision=fp32", "cltrain.offload=host");
    for (int stage = 0; stage <= CLT_MOST_STAGE; stage++) {
        const clt_plan_memory m = plan_at(c, stage, UINT64_MAX).memory;
        assert_int_equal(m.host, 2 * (stage ? own : TOTAL) * C);
        assert_int_equal(m.weights, (stage < 3 ? TOTAL : own + GATHERED) * C);
        assert_int_equal(m.optimizer, groups + 2 * PASSING * C);
    }
    clt_config_free(c);
    assert_int_equal(clt_plan_offload_stretch(5 * 65536), 5 * 65536);
}

/* The host has slots, whatever the size of the state, and LAMB takes the weights twice. */
static void offloaded_state_is_in_files(void **state) {
    (void)state;
    static const char *const optimizer[] = {"optimizer={name: decoupled_adamw}", "optimizer={name: lamb}"};
    for (size_t i = 0; i < CLT_COUNT_OF(optimizer); i++) {
        clt_config *host = LOAD("precision=amp_bf16", "cltrain.offload=host", optimizer[i]),
                   *file = LOAD("precision=amp_bf16", "cltrain.offload=file", "cltrain.offload_folder=x",
                                optimizer[i]);
        for (int stage = 0; stage <= CLT_MOST_STAGE; stage++) {
            const clt_plan_memory h = plan_at(host, stage, UINT64_MAX).memory,
                                  f = plan_at(file, stage, UINT64_MAX).memory;
            assert_int_equal(f.total, h.total);
            assert_int_equal(f.file, h.host);
            assert_int_equal(f.update_files.in, i ? f.file / 3 * 4 : f.file);
            assert_int_equal(f.update_files.out, f.update_files.in);
            assert_int_equal(f.host, 0);
            assert_int_equal(f.slots, 6 * (3 * PASSING / 4 * C + 4096) + (8 << 20));
            assert_int_equal(h.file, 0);
        }
        clt_config_free(host);
        clt_config_free(file);
    }
}

/* The note that contains `words`. */
static bool has_note(const clt_config *c, const clt_plan *p, const char *words) {
    clt_strv lines = {0};
    bool found = false;
    clt_plan_notes(c, p, &lines);
    for (size_t i = 0; i < lines.n; i++) found |= strstr(lines.v[i], words) != NULL;
    clt_strv_free(&lines);
    return found;
}

/* A ratio, or a host whose memory does not take everything, leaves a part on the device; its memory and the
 * host's together are the same. */
static void part_of_the_state_stays_on_the_device(void **state) {
    (void)state;
    clt_config *all = LOAD("precision=amp_bf16", "cltrain.offload=host"),
               *part = LOAD("precision=amp_bf16", "cltrain.offload=host", "cltrain.offload_ratio=0.25"),
               *none = LOAD("precision=amp_bf16", "cltrain.offload=host", "cltrain.offload_ratio=0");
    const uint64_t own = owned_chunks(all);
    for (int stage = 0; stage <= CLT_MOST_STAGE; stage++) {
        const uint64_t chunks = stage ? own : TOTAL, takes = CLT_CEIL_DIV(chunks, (uint64_t)4);
        const clt_plan_memory a = plan_at(all, stage, UINT64_MAX).memory,
                              p = plan_at(part, stage, UINT64_MAX).memory,
                              n = plan_at(none, stage, UINT64_MAX).memory;
        const uint64_t saved = takes < PASSING / 4 ? 4 * 3 * (PASSING / 4 - takes) * C : 0; /* places */
        assert_int_equal(p.host, 3 * takes * C);
        assert_int_equal(p.resident, (chunks - takes) * 65536);
        assert_int_equal(p.resident_bytes, 3 * (chunks - takes) * C);
        assert_int_equal(p.total, a.total + 3 * (chunks - takes) * C - saved);
        assert_int_equal(n.host, 0);
        assert_int_equal(n.resident, chunks * 65536);
    }
    clt_plan_room room = room_of(UINT64_MAX);
    clt_plan p = clt_plan_begin(all, RANKS);
    bool fits;
    room.host = (uint64_t)RANKS * 3 * (own / 2) * C + C; /* of all ranks of the host */
    assert_int_equal(clt_plan_fit_stage(all, &room, 1, &p, &fits), CLT_OK);
    assert_int_equal(p.memory.resident, (own - own / 2) * 65536);
    assert_true(has_note(all, &p, "stay on the device"));
    room.host = UINT64_MAX;
    assert_int_equal(clt_plan_fit_stage(all, &room, 1, &p, &fits), CLT_OK);
    assert_int_equal(p.memory.resident, 0);
    assert_false(has_note(all, &p, "stay on the device"));
    clt_plan_free(&p);
    clt_config_free(all);
    clt_config_free(part);
    clt_config_free(none);
}

/* --- parts of the formulas --- */

static void places_of_units(void **state) {
    (void)state;
    static const uint64_t size[] = {10, 3, 4, 2};
    assert_int_equal(clt_plan_places(size, 4, 1), 16);
    assert_int_equal(clt_plan_places(size, 4, 2), 20);
    assert_int_equal(clt_plan_places(size, 4, 9), 20);
    assert_int_equal(clt_plan_places(size, 2, 3), 13);
    assert_int_equal(clt_plan_places(size, 1, 3), 10);
}

/* --- decisions --- */

/* Nothing is saved where the device computes in the host's memory. */
static void offload_on_cpu_devices_is_noted(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16", "cltrain.offload=host");
    clt_plan p = plan_at(c, 1, UINT64_MAX);
    assert_true(has_note(c, &p, "cltrain.offload: host saves nothing"));
    p.type = CLT_DEVICE_GPU;
    assert_false(has_note(c, &p, "cltrain.offload"));
    clt_config_free(c);
}

/* Eight samples on eight lanes. */
static void a_lowered_microbatch_is_noted(void **state) {
    (void)state;
    clt_config *c = LOAD("global_train_batch_size=8", "device_train_microbatch_size=4"),
               *one = LOAD("global_train_batch_size=8", "device_train_microbatch_size=1");
    const clt_plan p = plan_at(c, 0, UINT64_MAX), q = plan_at(one, 0, UINT64_MAX);
    assert_true(has_note(c, &p, "device_train_microbatch_size: 4 is lowered to 1"));
    assert_false(has_note(one, &q, "lowered"));
    clt_config_free(one);
    clt_config_free(c);
}

/* On a GPU that is too small for microbatch 1 with recomputation, but not for the state elsewhere. */
static void offload_is_advised_on_gpus(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16", "cltrain.recompute=blocks", "device_train_microbatch_size=1"),
               *off = LOAD("precision=amp_bf16", "cltrain.recompute=blocks", "device_train_microbatch_size=1",
                           "cltrain.offload=host");
    const clt_plan p = plan_at(c, 0, UINT64_MAX);
    clt_plan_memory m;
    assert_int_equal(clt_plan_memory_of(off, &p, CLT_DEVICE_GPU, 1, &m), CLT_OK);
    clt_plan_room room = room_of(m.total);
    char *advice = clt_plan_advice(c, &p, &room);
    assert_true(!advice || !strstr(advice, "cltrain.offload"));
    clt_free(advice);
    room.type = CLT_DEVICE_GPU;
    advice = clt_plan_advice(c, &p, &room);
    assert_non_null(advice);
    assert_non_null(strstr(advice, "cltrain.offload: host with cltrain.recompute: blocks and microbatch 1"));
    clt_free(advice);
    clt_config_free(off);
    clt_config_free(c);
}

static clt_plan choose(const clt_config *c, int ranks, uint64_t capacity, bool *fits) {
    const clt_plan_room room = room_of(capacity);
    clt_plan p = clt_plan_begin(c, ranks);
    assert_int_equal(clt_plan_choose(c, &room, &p, fits), CLT_OK);
    clt_plan_free(&p);
    return p;
}

static void auto_takes_the_lowest_stage_that_fits(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16", "cltrain.recompute=norms");
    uint64_t need[CLT_MOST_STAGE + 1];
    bool fits;
    for (int s = 0; s <= CLT_MOST_STAGE; s++) need[s] = plan_at(c, s, UINT64_MAX).memory.total;
    for (int s = 1; s < CLT_MOST_STAGE; s++) assert_true(need[s] > need[s + 1]);
    for (int s = 1; s <= CLT_MOST_STAGE; s++) {
        const clt_plan p = choose(c, RANKS, s == 1 ? UINT64_MAX : need[s - 1] - 1, &fits);
        assert_int_equal(p.stage, s);
        assert_true(fits);
        assert_int_equal(has_note(c, &p, "cltrain.zero_stage: auto takes stage"), s > 1);
    }
    assert_int_equal(choose(c, RANKS, need[3] - 1, &fits).stage, 3);
    assert_false(fits);
    assert_int_equal(choose(c, 1, UINT64_MAX, &fits).stage, 0);
    clt_config_free(c);
}

/* A given stage is used although another one would fit. */
static void given_stages_are_kept(void **state) {
    (void)state;
    static const struct {
        const char *over;
        int ranks, stage, shard_ranks;
    } all[] = {{"cltrain={zero_stage: 2}", 4, 2, 4},
               {"cltrain={zero_stage: 3}", 1, 0, 1},
               {"fsdp_config={}", 4, 3, 4},
               {"fsdp_config={sharding_strategy: NO_SHARD}", 4, 0, 1},
               {GROUPS_OF_TWO("HYBRID_SHARD"), 4, 3, 2},
               {GROUPS_OF_TWO("_HYBRID_SHARD_ZERO2"), 4, 2, 4}, /* as SHARD_GRAD_OP */
               {"fsdp_config={data_parallel_shard_degree: 1, data_parallel_replicate_degree: -1}", 4, 0, 1}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        bool fits;
        clt_config *c = LOAD("precision=amp_bf16", all[i].over);
        clt_plan p = choose(c, all[i].ranks, 1, &fits);
        assert_false(fits);
        assert_int_equal(p.stage, all[i].stage);
        assert_int_equal(p.shard_ranks, all[i].shard_ranks);
        assert_int_equal(p.replicas, all[i].ranks / all[i].shard_ranks);
        clt_config_free(c);
    }
}

/* One line says what the groups of the configuration are used for. */
static void groups_have_a_note(void **state) {
    (void)state;
    static const struct {
        const char *over, *note; /* NULL: none */
    } all[] = {{GROUPS_OF_TWO("HYBRID_SHARD"), "weights are sharded inside 2 groups of 2 ranks"},
               {GROUPS_OF_TWO("_HYBRID_SHARD_ZERO2"),
                "what stage 2 shards is sharded over all 4 ranks instead of inside groups of 2"},
               {"fsdp_config={sharding_strategy: FULL_SHARD}", NULL}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        bool fits;
        clt_config *c = LOAD("precision=amp_bf16", all[i].over);
        const clt_plan p = choose(c, RANKS, UINT64_MAX, &fits);
        assert_int_equal(has_note(c, &p, all[i].note ? all[i].note : "groups"), all[i].note != NULL);
        clt_config_free(c);
    }
}

/* Lanes of 4 samples in microbatches of 2: gradients as at stage 1, and a note that says what to change. */
static void split_lanes_keep_whole_gradients(void **state) {
    (void)state;
    static const struct {
        const char *numerics, *microbatch;
        bool whole;
    } all[] = {{"cltrain.numerics=exact", "device_train_microbatch_size=2", true},
               {"cltrain.numerics=exact", "device_train_microbatch_size=4", false},
               {"cltrain.numerics=fast", "device_train_microbatch_size=2", false}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c =
            LOAD("precision=amp_bf16", "global_train_batch_size=32", all[i].numerics, all[i].microbatch);
        const clt_plan one = plan_at(c, 1, UINT64_MAX);
        assert_false(one.whole_gradients);
        for (int s = 2; s <= CLT_MOST_STAGE; s++) {
            const clt_plan p = plan_at(c, s, UINT64_MAX);
            assert_int_equal(p.whole_gradients, all[i].whole);
            assert_int_equal(p.memory.gradients == one.memory.gradients, all[i].whole);
            assert_int_equal(has_note(c, &p, "whole gradients"), all[i].whole);
            assert_int_equal(has_note(c, &p,
                                      "a lane has 4 samples, a microbatch 2; to shard them: "
                                      "cltrain.exact_lanes: 16 in a new run, or "
                                      "device_train_microbatch_size: 4"),
                             all[i].whole);
        }
        clt_config_free(c);
    }
}

/* Whole lanes can need less than parts of them, because only then gradients are sharded. */
static void microbatch_auto_prefers_whole_lanes(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=fp32", "global_train_batch_size=32", "device_train_microbatch_size=auto",
                         "max_seq_len=2", "train_loader.dataset.max_seq_len=2");
    clt_plan p = clt_plan_begin(c, RANKS);
    clt_plan_memory whole, part;
    p.stage = 2;
    p.shard_ranks = RANKS;
    assert_int_equal(clt_plan_memory_of(c, &p, CLT_DEVICE_CPU, 4, &whole), CLT_OK);
    assert_int_equal(clt_plan_memory_of(c, &p, CLT_DEVICE_CPU, 1, &part), CLT_OK);
    assert_true(whole.total < part.total);
    clt_plan_free(&p);
    p = plan_at(c, 2, whole.total);
    assert_int_equal(p.microbatch, 4);
    assert_int_equal(p.memory.total, whole.total);
    clt_config_free(c);
}

/* Ranks with more lanes own more, unless the largest part does not fit. */
static void parts_follow_lanes(void **state) {
    (void)state;
    clt_config *even = LOAD("precision=amp_bf16", "cltrain={zero_stage: 2, exact_lanes: 8, numerics: exact}"),
               *uneven =
                   LOAD("precision=amp_bf16", "cltrain={zero_stage: 2, exact_lanes: 8, numerics: exact, "
                                              "lanes_per_rank: [1, 1, 4, 2]}");
    const clt_plan_memory equal = plan_at(even, 2, UINT64_MAX).memory;
    clt_plan p = plan_at(uneven, 2, UINT64_MAX);
    assert_true(p.shards_by_lanes);
    assert_true(p.memory.optimizer > 19 * equal.optimizer / 10);
    const uint64_t capacity = p.memory.total - 1;
    assert_true(equal.total < capacity);
    p = plan_at(uneven, 2, capacity);
    assert_false(p.shards_by_lanes);
    assert_int_equal(p.memory.optimizer, equal.optimizer);
    assert_false(plan_at(uneven, 0, UINT64_MAX).shards_by_lanes);
    clt_config_free(even);
    clt_config_free(uneven);
}

/* --- several ranks --- */

typedef struct {
    const clt_config *c;
    uint64_t capacity[2]; /* of rank 0, of the others */
    bool split;           /* rank 0 must keep whole gradients */
    clt_status status[RANKS];
    clt_plan plan[RANKS];
} job;

static void agree(clt_group *g, void *ctx) {
    job *j = ctx;
    const int rank = clt_group_rank(g);
    const clt_plan_room room = room_of(j->capacity[rank > 0]);
    clt_plan *p = &j->plan[rank];
    bool fits;
    *p = clt_plan_begin(j->c, RANKS);
    clt_error_quiet(true);
    j->status[rank] = clt_plan_choose(j->c, &room, p, &fits);
    if (j->split && rank == 0) p->whole_gradients = true;
    if (j->status[rank] == CLT_OK) j->status[rank] = clt_plan_agree(g, j->c, &room, p);
    clt_plan_free(p);
}

/* One rank's device is smaller: all take its stage. */
static void all_ranks_take_the_highest_stage(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16", "cltrain.recompute=norms");
    job j = {.c = c, .capacity = {plan_at(c, 1, UINT64_MAX).memory.total - 1, UINT64_MAX}};
    tg_run(RANKS, agree, &j);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(j.status[r], CLT_OK);
        assert_int_equal(j.plan[r].stage, 2);
        assert_int_equal(j.plan[r].memory.total, j.plan[0].memory.total);
    }
    clt_config_free(c);
}

/* The largest part does not fit with one rank: all own equal parts. */
static void all_ranks_own_equal_parts(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=amp_bf16", "cltrain={zero_stage: 2, exact_lanes: 8, numerics: exact, "
                                               "lanes_per_rank: [1, 1, 4, 2]}");
    const uint64_t by_lanes = plan_at(c, 2, UINT64_MAX).memory.total,
                   equal = plan_at(c, 2, by_lanes - 1).memory.total;
    job j = {.c = c, .capacity = {by_lanes - 1, UINT64_MAX}};
    tg_run(RANKS, agree, &j);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(j.status[r], CLT_OK);
        assert_false(j.plan[r].shards_by_lanes);
        assert_int_equal(j.plan[r].memory.total, equal);
    }
    clt_config_free(c);
}

/* One rank's memory takes half a lane at once: all keep whole gradients, with a microbatch that still fits.
 */
static void all_ranks_keep_whole_gradients(void **state) {
    (void)state;
    clt_config *c = LOAD("precision=fp32", "global_train_batch_size=256", "cltrain.zero_stage=2",
                         "device_train_microbatch_size=auto");
    const clt_plan lanes = plan_at(c, 2, UINT64_MAX);
    clt_plan forced = clt_plan_begin(c, RANKS);
    clt_plan_memory half;
    forced.stage = 2;
    forced.shard_ranks = RANKS;
    assert_int_equal(clt_plan_memory_of(c, &forced, CLT_DEVICE_CPU, 16, &half), CLT_OK);
    clt_plan_free(&forced);
    assert_int_equal(lanes.microbatch, 32);
    assert_true(half.total < lanes.memory.total && half.gradients > lanes.memory.gradients);
    job j = {.c = c, .capacity = {half.total, lanes.memory.total}};
    tg_run(RANKS, agree, &j);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(j.status[r], CLT_OK);
        assert_true(j.plan[r].whole_gradients);
        assert_int_equal(j.plan[r].memory.gradients, half.gradients);
        assert_true(j.plan[r].memory.total <= j.capacity[r > 0]);
        assert_true(j.plan[r].microbatch >= 16 && j.plan[r].microbatch < 32);
        assert_int_equal(has_note(c, &j.plan[r], "whole gradients"), true);
    }
    clt_config_free(c);
}

/* The same where whole gradients do not fit with the others: no rank starts. */
static void whole_gradients_that_do_not_fit_stop_all(void **state) {
    (void)state;
    clt_config *c =
        LOAD("precision=fp32", "global_train_batch_size=128", "cltrain.zero_stage=2", "max_seq_len=2",
             "train_loader.dataset.max_seq_len=2", "device_train_microbatch_size=auto");
    const clt_plan lanes = plan_at(c, 2, UINT64_MAX);
    job j = {.c = c, .capacity = {lanes.memory.total, lanes.memory.total}, .split = true};
    assert_false(lanes.whole_gradients);
    tg_run(RANKS, agree, &j);
    for (int r = 0; r < RANKS; r++) assert_int_equal(j.status[r], CLT_NO_MEMORY);
    clt_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_bit_runs),
        cmocka_unit_test(exact_fp32_runs),
        cmocka_unit_test(untied_heads_have_places_of_their_own),
        cmocka_unit_test(groups_keep_weights),
        cmocka_unit_test(offloaded_state_is_in_host_memory),
        cmocka_unit_test(offloaded_state_is_in_files),
        cmocka_unit_test(part_of_the_state_stays_on_the_device),
        cmocka_unit_test(offload_on_cpu_devices_is_noted),
        cmocka_unit_test(a_lowered_microbatch_is_noted),
        cmocka_unit_test(offload_is_advised_on_gpus),
        cmocka_unit_test(places_are_one_buffer_each),
        cmocka_unit_test(places_of_units),
        cmocka_unit_test(auto_takes_the_lowest_stage_that_fits),
        cmocka_unit_test(given_stages_are_kept),
        cmocka_unit_test(groups_have_a_note),
        cmocka_unit_test(split_lanes_keep_whole_gradients),
        cmocka_unit_test(microbatch_auto_prefers_whole_lanes),
        cmocka_unit_test(parts_follow_lanes),
        cmocka_unit_test(all_ranks_take_the_highest_stage),
        cmocka_unit_test(all_ranks_own_equal_parts),
        cmocka_unit_test(all_ranks_keep_whole_gradients),
        cmocka_unit_test(whole_gradients_that_do_not_fit_stop_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
