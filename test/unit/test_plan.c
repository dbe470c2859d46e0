/* What a run decides before its first step: lanes, microbatch, recomputation, buffers of logits. The oracle
 * for "the largest that fits" is trying each of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/engine/clt_plan.h"

#define BASE "test/golden/mpt-learned/train.yaml"

static clt_config *load(const char *const *overrides, size_t n) {
    clt_config *c = NULL;
    if (clt_config_load(BASE, overrides, n, &c) != CLT_OK) fail_msg("%s", clt_last_error());
    return c;
}

static clt_plan_memory memory_of(const clt_config *c, clt_device_type type, int64_t microbatch,
                                 clt_recompute recompute) {
    clt_plan p = clt_plan_begin(c, 1);
    clt_plan_memory m;
    p.recompute = recompute;
    assert_int_equal(clt_plan_memory_of(c, &p, type, microbatch, &m), CLT_OK);
    clt_plan_free(&p);
    return m;
}

static clt_plan plan_in(const clt_config *c, clt_device_type type, uint64_t capacity, clt_status want) {
    const clt_plan_room room = {.type = type, .capacity = capacity, .max_alloc = UINT64_MAX};
    clt_plan p;
    assert_int_equal(clt_plan_make(c, 1, &room, &p), want);
    clt_plan_free(&p);
    return p;
}

/* The part of a rank leaves the device but for what passes through; one rank has all of it. */
static void weights_wait_in_host_memory(void **state) {
    (void)state;
    for (int narrow = 0; narrow < 2; narrow++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            const char *const over[] = {narrow ? "precision=amp_bf16" : "precision=fp32",
                                        "cltrain.zero_stage=3", "cltrain.offload_parameters=host"};
            clt_config *c = load(over, 3);
            const clt_plan_room room = {
                .type = CLT_DEVICE_GPU, .capacity = UINT64_MAX, .max_alloc = UINT64_MAX};
            clt_plan on_host, on_device;
            assert_int_equal(clt_plan_make(c, ranks, &room, &on_host), CLT_OK);
            c->shard.parameters = CLT_OFFLOAD_NONE;
            assert_int_equal(clt_plan_make(c, ranks, &room, &on_device), CLT_OK);
            const clt_plan_memory *m = &on_host.memory, *d = &on_device.memory;
            const uint64_t bytes = narrow ? 2 : 4;
            assert_int_equal(on_host.stage, 3);
            assert_true(m->host_weights >= m->elements * bytes / (uint64_t)ranks);
            assert_int_equal(clt_plan_pinned_bytes(m), m->host_weights);
            assert_int_equal(d->host_weights, 0);
            if (ranks > 1) { /* the places have as many elements as the part, which is small */
                assert_int_equal(m->weights + m->copy, d->weights + d->copy - m->host_weights);
                assert_int_equal(m->optimizer, d->optimizer + CLT_PLAN_OFFLOAD_PLACES * m->host_weights);
            }
            clt_plan_free(&on_host);
            clt_plan_free(&on_device);
            clt_config_free(c);
        }
}

/* One rank has no whole gradients on the device: buffers of units, and two places for sums of them.
 * With L lanes as many sums wait in host memory as L - 1 has ones as a binary number; a chain is one sum. */
static void sums_of_gradients_wait_in_host_memory(void **state) {
    (void)state;
    static const struct {
        const char *numerics, *lanes;
        uint64_t sums;
    } all[] = {{"cltrain.numerics=exact", "cltrain.exact_lanes=8", 3},
               {"cltrain.numerics=exact", "cltrain.exact_lanes=16", 4},
               {"cltrain.numerics=exact", "cltrain.exact_lanes=1", 1},
               {"cltrain.numerics=fast", "cltrain.exact_lanes=8", 1}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        const char *const over[] = {"precision=fp32",   all[i].numerics,
                                    all[i].lanes,       "cltrain.zero_stage=2",
                                    "model.n_layers=9", "cltrain.offload_gradients=host"};
        clt_config *c = load(over, CLT_COUNT_OF(over));
        const clt_plan_room room = {.type = CLT_DEVICE_GPU, .capacity = UINT64_MAX, .max_alloc = UINT64_MAX};
        clt_plan on_host, on_device;
        for (c->shard.zero_stage = 3; c->shard.zero_stage >= 2; c->shard.zero_stage--) {
            assert_int_equal(clt_plan_make(c, 1, &room, &on_host), CLT_OK);
            assert_int_equal(on_host.stage, 2); /* one rank has nobody to gather weights from */
            if (c->shard.zero_stage > 2) clt_plan_free(&on_host);
        }
        c->shard.gradients = CLT_OFFLOAD_NONE;
        assert_int_equal(clt_plan_make(c, 1, &room, &on_device), CLT_OK);
        const clt_plan_memory *m = &on_host.memory, *d = &on_device.memory;
        assert_int_equal(on_host.stage, 2);
        assert_int_equal(on_device.stage, 0);
        assert_int_equal(m->host_gradients, all[i].sums * m->elements * 4);
        assert_int_equal(clt_plan_pinned_bytes(m), m->host_gradients);
        assert_int_equal(d->host_gradients, 0);
        assert_int_equal(m->gradient_slabs, 0);
        const uint64_t stretch = clt_plan_offload_stretch(m->elements) * 4;
        assert_in_range(m->gradients, m->elements * 4 / 3, m->elements * 4 / 4 * 3); /* 5 of 9 blocks */
        assert_int_equal(m->optimizer, d->optimizer + CLT_PLAN_OFFLOAD_PLACES * stretch);
        clt_plan_free(&on_host);
        clt_plan_free(&on_device);
        clt_config_free(c);
    }
}

/* The most elements that a rank owns of a unit, counted in steps of 64, where tensors start. */
static uint64_t most_of_a_unit(const clt_config *c, const clt_shards *s, const clt_slab_table *t) {
    clt_model_unit *unit;
    const int n = clt_model_units(c->model, t, &unit);
    uint64_t most = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int u = 0; u < n; u++) {
            const uint64_t first = u ? t->entry[unit[u].first].offset : 0,
                           end = u + 1 < n ? t->entry[unit[u + 1].first].offset : t->total;
            uint64_t mine = 0;
            assert_int_equal(first % 64, 0);
            for (uint64_t at = first; at < end; at += 64)
                for (int b = 0; b < s->buckets; b++) {
                    const clt_slab_range x = clt_shards_range(s, b, r);
                    mine += at >= x.first && at < x.first + x.count ? 64 : 0;
                }
            most = CLT_MAX(most, mine);
        }
    clt_free(unit);
    return most;
}

/* On several ranks only the rank's part of them, of which four places of a unit's stay on the device. */
static void sums_of_ranks_wait_in_host_memory(void **state) {
    (void)state;
    enum { PLACES = 4 };
    static const uint64_t sums[] = {0, 0, 2, 2, 1}; /* by ranks, of eight lanes */
    for (int ranks = 2; ranks <= 4; ranks++) {
        const char *const over[] = {"precision=fp32",       "cltrain.numerics=exact",
                                    "cltrain.zero_stage=2", "model.n_layers=9",
                                    "model.d_model=256",    "cltrain.offload_gradients=host"};
        clt_config *c = load(over, CLT_COUNT_OF(over));
        const clt_plan_room room = {.type = CLT_DEVICE_GPU, .capacity = UINT64_MAX, .max_alloc = UINT64_MAX};
        clt_plan on_host, on_device;
        clt_slab_table t = {0};
        clt_shards s;
        assert_int_equal(clt_plan_make(c, ranks, &room, &on_host), CLT_OK);
        c->shard.gradients = CLT_OFFLOAD_NONE;
        assert_int_equal(clt_plan_make(c, ranks, &room, &on_device), CLT_OK);
        assert_int_equal(clt_model_table(c->model, &t), CLT_OK);
        assert_int_equal(clt_shards_create(&t, ranks, NULL, &s), CLT_OK);
        uint64_t owned = 0;
        for (int r = 0; r < ranks; r++) owned = CLT_MAX(owned, clt_shards_owned(&s, r));
        const clt_plan_memory *m = &on_host.memory, *d = &on_device.memory;
        const uint64_t places = PLACES * sums[ranks] * most_of_a_unit(c, &s, &t) * 4;
        assert_int_equal(m->host_gradients, sums[ranks] * owned * 4);
        assert_int_equal(d->gradients - m->gradients, m->host_gradients - places);
        clt_shards_free(&s);
        clt_slab_table_free(&t);
        clt_plan_free(&on_host);
        clt_plan_free(&on_device);
        clt_config_free(c);
    }
}

/* On a device that is too small for anything else: state, weights and gradients in host memory, or, where it
 * takes the last two only, the state in files. */
static void everything_can_leave_the_device(void **state) {
    (void)state;
    enum { MODEL = 9, ALL = 5, WANTED = 5 };
    /* Weights take much more than activations. */
    static const char *const over[MODEL + ALL] = {"precision=amp_bf16",
                                                  "cltrain.numerics=fast",
                                                  "model.d_model=512",
                                                  "model.n_layers=40",
                                                  "max_seq_len=16",
                                                  "model.max_seq_len=16",
                                                  "train_loader.dataset.max_seq_len=16",
                                                  "tokenizer.kwargs.model_max_length=16",
                                                  "global_train_batch_size=64",
                                                  "cltrain.recompute=blocks",
                                                  "cltrain.zero_stage=3",
                                                  "cltrain.offload=host",
                                                  "cltrain.offload_gradients=host",
                                                  "cltrain.offload_parameters=host"};
    clt_config *plain = load(over, MODEL), *all = load(over, MODEL + ALL);
    clt_plan_room room = {CLT_DEVICE_GPU, UINT64_MAX, UINT64_MAX, 0};
    clt_plan wanted;
    all->device_train_microbatch_size = WANTED;
    assert_int_equal(clt_plan_make(all, 1, &room, &wanted), CLT_OK);
    const clt_plan_memory *m = &wanted.memory;
    room.capacity = m->total;
    for (int files = 0; files < 2; files++) {
        room.host = m->host_weights + m->host_gradients + m->host / (files ? 2 : 1);
        clt_plan p = clt_plan_begin(plain, 1);
        p.microbatch = WANTED + 3;
        char *advice = clt_plan_advice(plain, &p, &room);
        const char *where =
            files ? "cltrain.offload: file with cltrain.offload_folder, " : "cltrain.offload: host, ";
        char *microbatch = clt_format("and microbatch %d (", WANTED);
        if (!advice || !strstr(advice, where) || !strstr(advice, microbatch) ||
            strncmp(advice, "cltrain.zero_stage: 3 with ", 27) != 0)
            fail_msg("%s", advice ? advice : "no advice");
        clt_free(microbatch);
        clt_free(advice);
        clt_plan_free(&p);
    }
    clt_plan_free(&wanted);
    clt_config_free(plain);
    clt_config_free(all);
}

/* Each microbatch reads the weights twice and hands on its sum, which all but the first have added to the one
 * before; the update reads everything and writes all but the total. */
static void the_link_moves_what_is_in_host_memory(void **state) {
    (void)state;
    static const char *const over[] = {"precision=amp_bf16",
                                       "cltrain.numerics=exact",
                                       "cltrain.exact_lanes=8",
                                       "global_train_batch_size=8",
                                       "cltrain.zero_stage=3",
                                       "cltrain.offload=host",
                                       "cltrain.offload_gradients=host",
                                       "cltrain.offload_parameters=host"};
    clt_config *c = load(over, CLT_COUNT_OF(over));
    const clt_plan_room room = {.type = CLT_DEVICE_GPU, .capacity = UINT64_MAX, .max_alloc = UINT64_MAX};
    clt_plan p;
    assert_int_equal(clt_plan_make(c, 1, &room, &p), CLT_OK);
    const clt_plan_traffic t = clt_plan_link(c, &p);
    const uint64_t n = p.memory.elements, weights = 2 * n, sum = 4 * n, moments_and_fp32 = 12 * n;
    uint64_t in = 0, out = 0;
    for (int microbatch = 0; microbatch < 8; microbatch++) {
        in += 2 * weights + (microbatch > 0 ? sum : 0);
        out += sum;
    }
    assert_int_equal(t.microbatches, 8);
    assert_int_equal(t.in, in + moments_and_fp32 + weights + sum);
    assert_int_equal(t.out, out + moments_and_fp32 + weights);
    clt_plan_free(&p);
    c->shard = (clt_shard_config){.degree = 1, .replicas = -1, .offload_ratio = NAN};
    assert_int_equal(clt_plan_make(c, 1, &room, &p), CLT_OK);
    assert_int_equal(clt_plan_link(c, &p).in + clt_plan_link(c, &p).out, 0);
    clt_plan_free(&p);
    clt_config_free(c);
}

/* The host reads the total and writes the weights that the model reads, where these are on the device; state
 * that stays there does not move. Places for both are pinned. */
static void steps_of_the_host_spare_the_link(void **state) {
    (void)state;
    static const struct {
        const char *precision, *more[3];
        uint64_t in, out, place, touched; /* bytes of an element; touched: of host memory */
        double ratio;
    } all[] = {
        {"precision=amp_bf16", {"cltrain.zero_stage=0"}, 2, 4, 6, 30, 1},
        {"precision=fp32", {"cltrain.zero_stage=0"}, 4, 8, 8, 28, 1},
        {"precision=amp_bf16", {"cltrain.zero_stage=2", "cltrain.offload_gradients=host"}, 2, 0, 2, 30, 1},
        {"precision=amp_bf16",
         {"cltrain.zero_stage=3", "cltrain.offload_gradients=host", "cltrain.offload_parameters=host"},
         0,
         0,
         0,
         30,
         1},
        {"precision=fp32", {"cltrain.zero_stage=3", "cltrain.offload_parameters=host"}, 0, 4, 4, 28, 1},
        {"precision=amp_bf16", {"cltrain.zero_stage=0", "cltrain.offload_ratio=0.5"}, 2, 4, 6, 30, 0.5},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        const char *over[8] = {all[i].precision, "cltrain.numerics=exact", "model.n_layers=9",
                               "cltrain.offload=host", "cltrain.offload_update=host"};
        size_t n = 5;
        for (int k = 0; k < 3 && all[i].more[k]; k++) over[n++] = all[i].more[k];
        clt_config *c = load(over, n);
        const clt_plan_room room = {.type = CLT_DEVICE_GPU, .capacity = UINT64_MAX, .max_alloc = UINT64_MAX};
        clt_plan host, device;
        assert_int_equal(clt_plan_make(c, 1, &room, &host), CLT_OK);
        c->shard.host_update = false;
        assert_int_equal(clt_plan_make(c, 1, &room, &device), CLT_OK);
        const clt_plan_memory *m = &host.memory, *d = &device.memory;
        const uint64_t chunks = m->elements / CLT_CHUNK,
                       leaving = (uint64_t)ceil((double)chunks * all[i].ratio) * CLT_CHUNK;
        assert_int_equal(m->update.in, leaving * all[i].in);
        assert_int_equal(m->update.out, leaving * all[i].out);
        assert_int_equal(m->update_touched, leaving * all[i].touched);
        assert_int_equal(m->host, d->host + CLT_PLAN_UPDATE_PLACES * clt_plan_update_stretch(m->elements) *
                                                all[i].place);
        assert_int_equal(m->total, d->total);
        assert_int_equal(d->update_touched, 0);
        clt_plan_free(&host);
        clt_plan_free(&device);
        clt_config_free(c);
    }
}

/* All inputs of blocks but three wait in host memory, and take none of the device's. */
static void inputs_of_blocks_wait_in_host_memory(void **state) {
    (void)state;
    enum { WIDTH = 64 };
    static const char *const on_device[] = {"model.n_layers=7", "cltrain.recompute=blocks"},
                             *const on_host[] = {"model.n_layers=7", "cltrain.offload_activations=host",
                                                 "global_train_batch_size=40"}, /* 5 in a lane */
                                 *const shallow[] = {"model.n_layers=3", "cltrain.offload_activations=host"};
    clt_config *c[] = {load(on_device, 2), load(on_host, 3), load(shallow, 2)};
    const uint64_t input = 5 * (uint64_t)(c[0]->max_seq_len * WIDTH) * sizeof(float);
    clt_plan_memory m[3];
    for (int i = 0; i < 3; i++) m[i] = memory_of(c[i], CLT_DEVICE_GPU, 5, c[i]->recompute);
    assert_int_equal(m[0].model.host, 0);
    assert_int_equal(m[1].model.host, 4 * input);
    assert_int_equal(clt_plan_pinned_bytes(&m[1]), 4 * input);
    assert_int_equal(m[1].total, m[0].total - 4 * input);
    assert_int_equal(m[2].model.host, 0);
    /* With little host memory the automatic microbatch is smaller, and nothing there is advised. */
    clt_plan_room room = {CLT_DEVICE_GPU, m[1].total, UINT64_MAX, 4 * input / 5 * 3};
    clt_plan p;
    c[1]->device_train_microbatch_size = 0;
    assert_int_equal(clt_plan_make(c[1], 1, &room, &p), CLT_OK);
    assert_int_equal(p.microbatch, 3);
    clt_plan_free(&p);
    const uint64_t one = memory_of(c[1], CLT_DEVICE_GPU, 1, c[1]->recompute).total;
    for (int little = 0; little < 2; little++) {
        room = (clt_plan_room){CLT_DEVICE_GPU, one, UINT64_MAX, 4 * input / 5 - (uint64_t)little};
        p = clt_plan_begin(c[0], 1);
        p.microbatch = 5;
        char *advice = clt_plan_advice(c[0], &p, &room);
        const bool advised = advice && strstr(advice, "cltrain.offload_activations: host with microbatch 1");
        assert_int_equal(advised, !little);
        clt_free(advice);
        clt_plan_free(&p);
    }
    for (int i = 0; i < 3; i++) clt_config_free(c[i]);
}

/* With room of which so many quarters take what keeping everything takes, and with four bytes less. The
 * configuration stays as it was read. */
static void recomputation_follows_the_memory_where_it_is_open(void **state) {
    (void)state;
    static const struct {
        const char *over;
        clt_device_type type;
        uint64_t quarters;
        clt_recompute roomy, tight;
    } all[] = {{"precision=amp_bf16", CLT_DEVICE_GPU, 1, CLT_RECOMPUTE_NONE, CLT_RECOMPUTE_NORMS},
               {"precision=amp_bf16", CLT_DEVICE_CPU, 1, CLT_RECOMPUTE_NONE, CLT_RECOMPUTE_NORMS},
               {"precision=amp_fp8", CLT_DEVICE_GPU, 3, CLT_RECOMPUTE_NONE, CLT_RECOMPUTE_NORMS},
               {"precision=exact8", CLT_DEVICE_CPU, 3, CLT_RECOMPUTE_NONE, CLT_RECOMPUTE_NORMS},
               {"cltrain={recompute: norms, numerics: fast}", CLT_DEVICE_GPU, 1, CLT_RECOMPUTE_NORMS,
                CLT_RECOMPUTE_NORMS},
               {"precision=fp32", CLT_DEVICE_GPU, 1, CLT_RECOMPUTE_NONE, CLT_RECOMPUTE_NONE}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = load((const char *[]){all[i].over, "device_train_microbatch_size=1"}, 2);
        const clt_recompute as_read = c->recompute;
        const uint64_t need = memory_of(c, all[i].type, 1, CLT_RECOMPUTE_NONE).total;
        for (int tight = 1; tight >= 0; tight--) {
            const clt_recompute want = tight ? all[i].tight : all[i].roomy;
            const clt_plan p =
                plan_in(c, all[i].type, 4 * (CLT_CEIL_DIV(need, all[i].quarters) - (uint64_t)tight), CLT_OK);
            assert_int_equal(p.recompute, want);
            if (want == CLT_RECOMPUTE_NONE) assert_int_equal(p.memory.total, need);
        }
        assert_int_equal(c->recompute, as_read);
        clt_config_free(c);
    }
}

/* With room for the large logits buffer of small models, and a byte less. */
static void logits_groups_give_way_to_memory(void **state) {
    (void)state;
    static const char *const over[] = {"precision=amp_bf16", "model.vocab_size=1048576",
                                       "global_train_batch_size=16", "device_train_microbatch_size=16",
                                       "cltrain.exact_lanes=1"};
    clt_config *c = load(over, CLT_COUNT_OF(over));
    const uint64_t large = memory_of(c, CLT_DEVICE_GPU, 16, c->recompute).total;
    assert_int_equal(plan_in(c, CLT_DEVICE_GPU, large, CLT_OK).memory.total, large);
    const clt_plan p = plan_in(c, CLT_DEVICE_GPU, large - 1, CLT_OK);
    assert_int_equal(p.microbatch, 16);
    assert_in_range(large - p.memory.total, 1ull << 30, 3ull << 29);
    clt_config_free(c);
}

/* The largest microbatch that takes no more than this one: by trying each. */
static int64_t largest_by_trying(const clt_config *c, int64_t samples, uint64_t capacity) {
    int64_t largest = samples;
    for (int64_t s = samples + 1; s < 64; s++)
        if (memory_of(c, CLT_DEVICE_GPU, s, c->recompute).total <= capacity) largest = s;
    return largest;
}

/* As trying each of them finds it, and not by trying a billion of them. */
static void microbatch_is_the_largest_that_fits(void **state) {
    (void)state;
    static const char *const over[] = {"precision=fp32", "cltrain={recompute: blocks, exact_lanes: 1}",
                                       "model.vocab_size=262144", /* logits in groups of a few samples */
                                       "global_train_batch_size=1000000000"};
    clt_config *c = load(over, CLT_COUNT_OF(over));
    int less = 0;
    for (int64_t samples = 3; samples <= 5; samples++) {
        const uint64_t fits = memory_of(c, CLT_DEVICE_GPU, samples, c->recompute).total;
        const int64_t largest = largest_by_trying(c, samples, fits);
        less += largest > samples;
        c->device_train_microbatch_size = 0; /* auto */
        assert_int_equal(plan_in(c, CLT_DEVICE_GPU, fits, CLT_OK).microbatch, largest);
        c->device_train_microbatch_size = 900000000;
        clt_error_quiet(true);
        plan_in(c, CLT_DEVICE_GPU, fits, CLT_NO_MEMORY);
        clt_error_quiet(false);
        char *advice = clt_format("what would fit: device_train_microbatch_size: %d (", (int)largest);
        assert_non_null(strstr(clt_last_error(), advice));
        clt_free(advice);
    }
    assert_true(less > 0); /* more samples do need less at times */
    clt_config_free(c);
}

/* Ranks and lanes: evenly, as given, as a checkpoint says, by speed. */
static void lanes_are_divided(void **state) {
    (void)state;
    clt_config *c = load((const char *[]){"precision=fp32", "cltrain.lanes_per_rank=[5, 3]"}, 2);
    clt_plan p = clt_plan_begin(c, 2);
    assert_int_equal(p.lanes, 8);
    assert_int_equal(p.lanes_per_rank[0], 5);
    clt_plan_free(&p);
    p = clt_plan_begin(c, 3); /* of another number of ranks: evenly */
    assert_null(p.lanes_per_rank);
    const clt_lane_split even = clt_plan_split(&p);
    assert_int_equal(clt_lane_begin(&even, 1), 2);
    assert_int_equal(clt_lane_begin(&even, 3), 8);
    clt_plan_take_counts(&p, 8, (const int[]){1, 1, 6});
    const clt_lane_split uneven = clt_plan_split(&p);
    assert_int_equal(clt_lane_begin(&uneven, 2), 2);
    clt_plan_free(&p);
    clt_config_free(c);

    c = load((const char *[]){"precision=fp32"}, 1);
    p = clt_plan_begin(c, 3);
    p.exact_lanes = 16; /* from a checkpoint */
    assert_int_equal(clt_plan_divide(c, &p), CLT_OK);
    assert_int_equal(p.lanes, 16);
    p.exact_lanes = 2;
    clt_error_quiet(true);
    assert_int_equal(clt_plan_divide(c, &p), CLT_BAD_CONFIG);
    clt_error_quiet(false);
    clt_plan_free(&p);
    clt_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_wait_in_host_memory),
        cmocka_unit_test(sums_of_gradients_wait_in_host_memory),
        cmocka_unit_test(the_link_moves_what_is_in_host_memory),
        cmocka_unit_test(steps_of_the_host_spare_the_link),
        cmocka_unit_test(sums_of_ranks_wait_in_host_memory),
        cmocka_unit_test(everything_can_leave_the_device),
        cmocka_unit_test(inputs_of_blocks_wait_in_host_memory),
        cmocka_unit_test(recomputation_follows_the_memory_where_it_is_open),
        cmocka_unit_test(logits_groups_give_way_to_memory),
        cmocka_unit_test(microbatch_is_the_largest_that_fits),
        cmocka_unit_test(lanes_are_divided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
