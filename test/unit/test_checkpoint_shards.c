/* Checkpoints and hashes of state that is sharded over ranks: saved by some ranks, loaded by others, into
 * shards and whole slabs. Ranks are threads (test/thread_group.h), each with a device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_philox.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "test/ckpt_util.h"
#include "test/config_util.h"
#include "test/thread_group.h"

enum { RANKS = 4, PARTS = 2 };

static clt_device *device[RANKS];
static clt_slab_table table;
static float *want[PARTS]; /* the whole state */
static clt_state_hash want_hash;
static const char *const roles[PARTS] = {"weight", "exp_avg"};

/* --- the state --- */

static void add(const char *name, int64_t count) {
    clt_slab_table_add(&table, name, 1, &count);
}

/* Two buckets; tensors of several checkpoint chunks, with a part of a chunk at the end, between small ones.
 */
static void make_state(void) {
    add("a", 70);
    add("b", 40 * (int64_t)CLT_CHUNK);
    add("c", 100);
    add("d", 45 * (int64_t)CLT_CHUNK - 1000);
    add("e", 900);
    add("f", 60000);
    clt_slab_table_finish(&table);
    for (int p = 0; p < PARTS; p++) {
        want[p] = clt_calloc(table.total, sizeof **want);
        for (int e = 0; e < table.n; e++)
            for (uint64_t i = 0; i < table.entry[e].count; i++) {
                uint32_t word[4];
                clt_philox4x32((uint32_t[]){(uint32_t)i, (uint32_t)e, 0, 0}, (uint32_t[]){7, (uint32_t)p},
                               word);
                want[p][table.entry[e].offset + i] = (float)word[0] * 0x1p-31f - 1.0f;
            }
    }
}

static int begin(void **state) {
    (void)state;
    const clt_device_params p = clt_device_params_default();
    for (int r = 0; r < RANKS; r++)
        if (clt_device_open(&p, &device[r]) != CLT_OK) return -1;
    make_state();
    clt_ckpt_part part[PARTS];
    for (int p = 0; p < PARTS; p++) part[p] = (clt_ckpt_part){.role = roles[p], .host = want[p]};
    return clt_ckpt_hash_parts(NULL, &table, part, PARTS, &want_hash) == CLT_OK ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    for (int p = 0; p < PARTS; p++) clt_free(want[p]);
    clt_slab_table_free(&table);
    for (int r = 0; r < RANKS; r++) clt_device_close(device[r]);
    return 0;
}

/* --- one rank: without cmocka's asserts, which leave the thread by longjmp --- */

typedef struct {
    const char *dir, *path;
    const double *weight; /* of the ranks */
    bool whole[PARTS];    /* parts that are not sharded */
    bool snapshot;
    int broken_rank; /* its reads fail; -1: none */
    clt_status status[RANKS];
    clt_state_hash hash[RANKS];
} job;

/* What a rank holds: a part that is whole, or its shard. */
typedef struct {
    clt_shards shards;
    clt_slab *slab[PARTS];
    clt_ckpt_part part[PARTS];
} holding;

static clt_status hold(holding *h, const job *j, int ranks, int rank) {
    memset(h, 0, sizeof *h);
    CLT_TRY(clt_shards_create(&table, ranks, j->weight, &h->shards));
    for (int p = 0; p < PARTS; p++) {
        if (j->whole[p])
            CLT_TRY(clt_slab_create(device[rank], &table, 0, roles[p], &h->slab[p]));
        else
            CLT_TRY(clt_slab_create_shard(device[rank], &table, &h->shards, rank, sizeof(float), roles[p],
                                          &h->slab[p]));
        h->part[p] =
            (clt_ckpt_part){.role = roles[p], .slab = h->slab[p], .shards = j->whole[p] ? NULL : &h->shards};
    }
    return CLT_OK;
}

static void drop(holding *h) {
    for (int p = 0; p < PARTS; p++) clt_slab_destroy(h->slab[p]);
    clt_shards_free(&h->shards);
}

static clt_status broken_read(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    (void)ctx, (void)entry, (void)first;
    memset(dst, 0, count * sizeof *dst);
    return clt_error(CLT_FAIL, "this rank's device is broken");
}

static clt_status save(clt_group *g, const job *j, const clt_ckpt_part *part) {
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = clt_ckpt_writer_params_default();
    const clt_checkpoint_state numbers = cu_numbers(7);
    p.group = g, p.folder = j->dir, p.run_id = "0123456789abcdef", p.table = &table;
    p.parts = part, p.part_count = PARTS, p.threads = clt_group_rank(g) % 2, p.snapshot = j->snapshot;
    CLT_TRY(clt_ckpt_writer_create(&p, &w));
    const clt_status st = clt_ckpt_save(w, "ba7", &numbers);
    clt_ckpt_writer_destroy(w);
    return st;
}

static void save_rank(clt_group *g, void *ctx) {
    job *j = ctx;
    const int rank = clt_group_rank(g);
    holding h;
    clt_error_quiet(j->broken_rank >= 0);
    clt_status st = hold(&h, j, clt_group_size(g), rank);
    for (int p = 0; p < PARTS && st == CLT_OK; p++) {
        st = clt_slab_write(h.slab[p], 0, want[p], table.total);
        if (rank == j->broken_rank) h.part[p].slab = NULL, h.part[p].read = broken_read;
    }
    st = clt_group_agree(g, st);
    if (st == CLT_OK) st = save(g, j, h.part);
    const clt_status hashed = clt_ckpt_hash_parts(g, &table, h.part, PARTS, &j->hash[rank]);
    j->status[rank] = st == CLT_OK ? hashed : st;
    if (st != hashed) j->status[rank] = CLT_USAGE; /* both fail in the same way */
    drop(&h);
    clt_error_quiet(false);
}

/* Every word of the first n parts that is here is that of the state, padding included. */
static clt_status compare(const holding *h, int n) {
    float *x = clt_malloc(table.total * sizeof *x);
    clt_status st = CLT_OK;
    for (int p = 0; p < n; p++)
        for (int i = 0; i < h->slab[p]->n && st == CLT_OK; i++) {
            const uint64_t first = h->slab[p]->start[i], count = h->slab[p]->start[i + 1] - first;
            if (!h->slab[p]->piece[i]) continue;
            st = clt_slab_read(h->slab[p], first, x, count);
            if (st == CLT_OK && memcmp(x, want[p] + first, count * sizeof *x)) st = CLT_BAD_CONFIG;
        }
    clt_free(x);
    return st;
}

/* Every rank can get every tensor. A rank that fails stays in step with the others. */
static clt_status gather_all(clt_group *g, const clt_ckpt_part *part) {
    float *x = clt_malloc(table.total * sizeof *x);
    clt_status worst = CLT_OK;
    for (int p = 0; p < PARTS; p++)
        for (int e = 0; e < table.n; e++) {
            const clt_slab_entry *t = &table.entry[e];
            clt_status st = clt_ckpt_gather(g, &table, &part[p], e, x);
            if (st == CLT_OK && memcmp(x, want[p] + t->offset, t->count * sizeof *x)) st = CLT_BAD_CONFIG;
            if (st != CLT_OK) worst = st;
        }
    clt_free(x);
    return worst;
}

static void load_rank(clt_group *g, void *ctx) {
    job *j = ctx;
    const int rank = clt_group_rank(g);
    clt_ckpt_reader *r = NULL;
    holding h;
    clt_error_quiet(true);
    clt_status st = hold(&h, j, clt_group_size(g), rank);
    if (st == CLT_OK) st = clt_ckpt_open(j->path, &r);
    if (st == CLT_OK) st = clt_ckpt_load(r, &table, h.part, PARTS, NULL);
    clt_ckpt_close(r);
    if (st == CLT_OK) st = compare(&h, PARTS);
    j->status[rank] = st;
    if (clt_group_agree(g, st) == CLT_OK) {
        j->status[rank] = gather_all(g, h.part);
        const clt_status hashed = clt_ckpt_hash_parts(g, &table, h.part, PARTS, &j->hash[rank]);
        if (j->status[rank] == CLT_OK) j->status[rank] = hashed;
    }
    drop(&h);
    clt_error_quiet(false);
}

/* --- the tests --- */

static void check(const job *j, int ranks, clt_status status) {
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(j->status[r], status);
        if (status != CLT_OK) continue;
        assert_memory_equal(&j->hash[r].weights, &want_hash.weights, sizeof want_hash.weights);
        assert_memory_equal(&j->hash[r].optimizer, &want_hash.optimizer, sizeof want_hash.optimizer);
    }
}

/* What cltrain ckpt verify and hash say of it. */
static void check_file(const char *path) {
    clt_ckpt_reader *r;
    clt_state_hash h;
    assert_int_equal(clt_ckpt_open(path, &r), CLT_OK);
    assert_int_equal(clt_ckpt_verify(r), CLT_OK);
    assert_int_equal(clt_ckpt_hash(r, &h), CLT_OK);
    assert_memory_equal(&h.weights, &want_hash.weights, sizeof h.weights);
    assert_memory_equal(&h.optimizer, &want_hash.optimizer, sizeof h.optimizer);
    clt_ckpt_close(r);
}

/* Saved by every number of ranks and loaded by every number. With an odd number of saving ranks the weights
 * are whole, with three loading ranks the moments, and with two saving ranks the shares differ. */
static void any_ranks_to_any_ranks(void **state) {
    (void)state;
    static const double uneven[RANKS] = {1, 3, 1, 1};
    for (int n = 1; n <= RANKS; n++) {
        char dir[] = "/tmp/clt_ckpt_XXXXXX";
        assert_non_null(mkdtemp(dir));
        char *path = clt_path_join(dir, "ba7");
        job s = {.dir = dir, .broken_rank = -1, .snapshot = n > 2};
        s.whole[0] = n % 2;
        s.weight = n == 2 ? uneven : NULL;
        tg_run(n, save_rank, &s);
        check(&s, n, CLT_OK);
        check_file(path);
        for (int m = 1; m <= RANKS; m++) {
            job l = {.path = path, .broken_rank = -1};
            l.whole[1] = m == 3;
            l.weight = m == 4 ? uneven : NULL;
            tg_run(m, load_rank, &l);
            check(&l, m, CLT_OK);
        }
        job whole = {.path = path, .broken_rank = -1, .whole = {true, true}};
        tg_run(1, load_rank, &whole);
        check(&whole, 1, CLT_OK);
        assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
        clt_free(path);
    }
}

/* The names of the data files say which rank wrote them; a rank that owns nothing writes none. */
static void owners_write(void **state) {
    (void)state;
    static const double weight[3] = {1, 0, 1};
    char dir[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "ba7");
    job s = {.dir = dir, .broken_rank = -1, .weight = weight};
    tg_run(3, save_rank, &s);
    check(&s, 3, CLT_OK);
    static const char *const file[] = {"data.00000.bin", "data.00001.bin", "data.00002.bin"};
    for (int r = 0; r < 3; r++) {
        char *data = clt_path_join(path, file[r]);
        assert_int_equal(clt_io_is_file(data), weight[r] > 0);
        clt_free(data);
    }
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
}

/* Damages a byte of every chunk of a data file. */
static void damage(const char *path, const char *name) {
    char *data = clt_path_join(path, name);
    clt_file *f;
    char *bytes;
    size_t n;
    assert_int_equal(clt_io_read_all(data, (size_t)1 << 30, &bytes, &n), CLT_OK);
    for (size_t i = 0; i < n; i += 64) bytes[i] ^= 1;
    assert_int_equal(clt_file_open(data, CLT_IO_CREATE, &f), CLT_OK);
    assert_int_equal(clt_file_pwrite(f, bytes, n, 0), CLT_OK);
    assert_int_equal(clt_file_close(f), CLT_OK);
    clt_free(bytes);
    clt_free(data);
}

/* A rank reads only chunks of which it keeps something: damage in another rank's is not noticed. */
static void others_chunks_are_not_read(void **state) {
    (void)state;
    char dir[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "ba7");
    job s = {.dir = dir, .broken_rank = -1}, l = {.path = path, .broken_rank = -1};
    tg_run(2, save_rank, &s);
    check(&s, 2, CLT_OK);
    damage(path, "data.00001.bin");
    tg_run(2, load_rank, &l);
    assert_int_equal(l.status[0], CLT_OK);
    assert_int_equal(l.status[1], CLT_BAD_DATA);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
}

/* --- other sources of weights --- */

static clt_status fill_tensor(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    (void)ctx;
    memcpy(dst, want[0] + table.entry[index].offset + first, count * sizeof *dst);
    return CLT_OK;
}

static void load_file_rank(clt_group *g, void *ctx) {
    job *j = ctx;
    const int rank = clt_group_rank(g);
    clt_weight_source *s = NULL;
    holding h;
    clt_status st = hold(&h, j, clt_group_size(g), rank);
    if (st == CLT_OK) st = clt_weight_source_open(j->path, &s);
    if (st == CLT_OK) st = clt_weight_source_load(s, &table, h.part, 1, NULL);
    clt_weight_source_close(s);
    if (st == CLT_OK) st = compare(&h, 1);
    j->status[rank] = st;
    drop(&h);
}

static void safetensors_into_shards(void **state) {
    (void)state;
    char dir[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "weights.safetensors");
    clt_st_spec spec[8];
    for (int e = 0; e < table.n; e++)
        spec[e] = (clt_st_spec){table.entry[e].name, CLT_ST_F32, 1, {(int64_t)table.entry[e].count}};
    assert_int_equal(clt_safetensors_write(path, spec, table.n, NULL, 0, fill_tensor, NULL), CLT_OK);
    job l = {.path = path};
    tg_run(3, load_file_rank, &l);
    for (int r = 0; r < 3; r++) assert_int_equal(l.status[r], CLT_OK);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
}

/* Initial weights of a model of two buckets: each rank's are those of the whole slab. */
static void initial_weights_of_shards(void **state) {
    (void)state;
    enum { SEED = 17 };
    clt_config *c = cu_load_with("model.vocab_size=70000");
    clt_slab_table t = {0};
    clt_shards shards;
    clt_slab *whole, *s;
    assert_int_equal(clt_model_table(c->model, &t), CLT_OK);
    assert_int_equal(clt_shards_create(&t, 3, NULL, &shards), CLT_OK);
    assert_true(shards.buckets > 1);
    float *x = clt_malloc(t.total * sizeof *x), *y = clt_malloc(t.total * sizeof *y);
    assert_int_equal(clt_slab_create(device[0], &t, 0, "whole", &whole), CLT_OK);
    assert_int_equal(clt_model_init_weights(c->model, &t, SEED, whole), CLT_OK);
    assert_int_equal(clt_slab_read(whole, 0, x, t.total), CLT_OK);
    for (int rank = 0; rank < shards.ranks; rank++) {
        assert_int_equal(clt_slab_create_shard(device[0], &t, &shards, rank, 4, "shard", &s), CLT_OK);
        assert_int_equal(clt_model_init_weights(c->model, &t, SEED, s), CLT_OK);
        for (int i = 0; i < s->n; i++) {
            const uint64_t first = s->start[i], count = s->start[i + 1] - first;
            if (!s->piece[i]) continue;
            assert_int_equal(clt_slab_read(s, first, y, count), CLT_OK);
            assert_memory_equal(y, x + first, count * sizeof *x);
        }
        clt_slab_destroy(s);
    }
    clt_slab_destroy(whole);
    clt_free(y);
    clt_free(x);
    clt_shards_free(&shards);
    clt_slab_table_free(&t);
    clt_config_free(c);
}

/* --- failures --- */

/* One owner cannot read its part: all ranks get that status from the save and from the hash. */
static void broken_owner(void **state) {
    (void)state;
    for (int broken = 0; broken < 3; broken++) {
        char dir[] = "/tmp/clt_ckpt_XXXXXX";
        assert_non_null(mkdtemp(dir));
        char *path = clt_path_join(dir, "ba7");
        job s = {.dir = dir, .broken_rank = broken, .whole = {broken == 1, false}};
        tg_run(3, save_rank, &s);
        check(&s, 3, CLT_FAIL);
        assert_false(clt_io_is_dir(path));
        assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
        clt_free(path);
    }
}

/* Shards for another number of ranks than the group has are refused before anything is written. */
static void wrong_shards(void **state) {
    (void)state;
    char dir[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(dir));
    job j = {.dir = dir};
    holding h;
    clt_state_hash hash;
    assert_int_equal(hold(&h, &j, 2, 1), CLT_OK);
    clt_error_quiet(true);
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = clt_ckpt_writer_params_default();
    p.folder = dir, p.run_id = "0123456789abcdef", p.table = &table, p.parts = h.part, p.part_count = PARTS;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_FAIL);
    assert_int_equal(clt_ckpt_hash_parts(NULL, &table, h.part, PARTS, &hash), CLT_FAIL);
    clt_error_quiet(false);
    drop(&h);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_ranks_to_any_ranks),
        cmocka_unit_test(owners_write),
        cmocka_unit_test(others_chunks_are_not_read),
        cmocka_unit_test(broken_owner),
        cmocka_unit_test(safetensors_into_shards),
        cmocka_unit_test(initial_weights_of_shards),
        cmocka_unit_test(wrong_shards),
    };
    clt_log_set_level(CLT_LOG_ERROR);
    return cmocka_run_group_tests_name("sharded checkpoints", tests, begin, end);
}
