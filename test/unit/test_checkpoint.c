/* Checkpoints: what is saved is loaded, with any number of threads; every damage is found and named. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

static memfs *fs; /* mem:/// */

#define OLD "mem:///run/ep0-ba1"

static char *temporary_folder(void) {
    char path[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(path));
    return clt_strdup(path);
}

static void save(clt_ckpt_writer_params p, const char *name, int64_t batch) {
    clt_ckpt_writer *w = NULL;
    clt_checkpoint_state n = cu_numbers(batch);
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, name, &n), CLT_OK);
    clt_ckpt_writer_destroy(w);
}

/* A fresh file system in memory with one small checkpoint, OLD. */
static void memory_setup(cu_state *s) {
    fs = mem_mount("mem");
    cu_state_create(s, false, 1);
    save(cu_params(s, "mem:///run"), "ep0-ba1", 1);
}

static void memory_teardown(cu_state *s) {
    clt_io_unregister("mem");
    mem_destroy(fs);
    cu_state_free(s);
}

/* --- round trip --- */

static void check_numbers(const clt_checkpoint_state *got, const clt_checkpoint_state *want) {
    assert_int_equal(got->epoch, want->epoch);
    assert_int_equal(got->batch, want->batch);
    assert_int_equal(got->sample, want->sample);
    assert_int_equal(got->token, want->token);
    assert_int_equal(got->batch_in_epoch, want->batch_in_epoch);
    assert_int_equal(got->sample_in_epoch, want->sample_in_epoch);
    assert_int_equal(got->token_in_epoch, want->token_in_epoch);
    assert_true(got->train_seconds == want->train_seconds && got->loss == want->loss);
    assert_int_equal(got->data_epoch, want->data_epoch);
    assert_int_equal(got->data_sample_in_epoch, want->data_sample_in_epoch);
    assert_int_equal(got->num_canonical_nodes, want->num_canonical_nodes);
    assert_int_equal(got->shuffle_seed, want->shuffle_seed);
    assert_int_equal(got->initial_physical_nodes, want->initial_physical_nodes);
    assert_int_equal(got->seed, want->seed);
    assert_int_equal(got->lanes, want->lanes);
    assert_int_equal(got->optimizer_step, want->optimizer_step);
    assert_string_equal(got->optimizer, want->optimizer);
    assert_string_equal(got->run_name, want->run_name);
    assert_string_equal(got->config, want->config);
    assert_string_equal(got->device, want->device);
    assert_string_equal(got->version, want->version);
    assert_int_equal(got->number_count, 2);
    assert_string_equal(got->numbers[1].name, "odd");
    assert_true(got->numbers[0].value == 65536.0 && got->numbers[1].value == 0.1);
    assert_non_null(strstr(got->model, "\"attn_config\":{\"alibi\":true}"));
}

static void test_round_trip(void **state) {
    (void)state;
    char *dir = temporary_folder(), *path = clt_path_join(dir, "ep1-ba7");
    cu_state s;
    cu_state_create(&s, true, 5);
    clt_state_hash live, stored[3];
    assert_int_equal(clt_ckpt_hash_parts(NULL, &s.table, s.part, CU_PARTS, &live), CLT_OK);
    /* Without threads, with threads, and from a snapshot: the same bytes. */
    for (int how = 0; how < 3; how++) {
        clt_ckpt_writer_params p = cu_params(&s, dir);
        p.threads = how ? 3 : 0;
        p.snapshot = how == 2;
        p.overwrite = true;
        p.run_id = (const char *[]){"00000000000000aa", "00000000000000bb", "00000000000000cc"}[how];
        save(p, "ep1-ba7", 7);
        assert_int_equal(cu_check(path, &s), CLT_OK);
        clt_ckpt_reader *r;
        clt_checkpoint_state want = cu_numbers(7);
        assert_int_equal(clt_ckpt_open(path, &r), CLT_OK);
        check_numbers(clt_ckpt_state(r), &want);
        assert_string_equal(clt_ckpt_run_id(r), p.run_id);
        assert_int_equal(clt_ckpt_verify(r), CLT_OK);
        assert_int_equal(clt_ckpt_hash(r, &stored[how]), CLT_OK);
        assert_memory_equal(&stored[how].weights, &live.weights, sizeof live.weights);
        assert_memory_equal(&stored[how].optimizer, &live.optimizer, sizeof live.optimizer);
        int i = clt_ckpt_find(r, "exp_avg", "transformer.blocks.0.ffn.up_proj.weight");
        clt_ckpt_tensor t;
        clt_ckpt_at(r, i, &t);
        assert_int_equal(t.chunks, 3); /* 2,102,100 elements */
        /* A range across two chunks, and the last element. */
        float got[3], *want_at = s.host[1] + s.table.entry[2].offset;
        assert_int_equal(clt_ckpt_read(r, i, CLT_CKPT_CHUNK - 1, got, 3), CLT_OK);
        assert_memory_equal(got, want_at + CLT_CKPT_CHUNK - 1, sizeof got);
        assert_int_equal(clt_ckpt_read(r, i, t.count - 1, got, 1), CLT_OK);
        assert_memory_equal(got, want_at + t.count - 1, sizeof *got);
        clt_error_quiet(true);
        assert_int_equal(clt_ckpt_read(r, i, t.count, got, 1), CLT_FAIL);
        clt_error_quiet(false);
        clt_ckpt_close(r);
    }
    s.host[2][s.table.entry[3].offset + 7] += 1e-7f; /* one bit of the optimizer */
    clt_state_hash other;
    assert_int_equal(clt_ckpt_hash_parts(NULL, &s.table, s.part, CU_PARTS, &other), CLT_OK);
    assert_memory_equal(&other.weights, &live.weights, sizeof live.weights);
    assert_memory_not_equal(&other.optimizer, &live.optimizer, sizeof live.optimizer);
    cu_state_free(&s);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
    clt_free(dir);
}

/* A file that an earlier version wrote. */
static void test_old_version(void **state) {
    (void)state;
    const char *path = "test/golden/checkpoint-v1/ep1-ba7";
    cu_state s;
    clt_ckpt_reader *r;
    clt_checkpoint_state want = cu_numbers(7);
    cu_state_create(&s, false, 42);
    assert_int_equal(cu_check(path, &s), CLT_OK);
    assert_int_equal(clt_ckpt_open(path, &r), CLT_OK);
    assert_int_equal(clt_ckpt_verify(r), CLT_OK);
    assert_string_equal(clt_ckpt_state(r)->version, "0.1.0");
    want.version = "0.1.0";
    check_numbers(clt_ckpt_state(r), &want);
    clt_ckpt_close(r);
    cu_state_free(&s);
}

/* The hash that docs/checkpoint-format.md defines, over bytes written out by hand. */
static void test_hash_definition(void **state) {
    (void)state;
    clt_slab_table t = {0};
    clt_slab_table_add(&t, "a", 1, (int64_t[]){2});
    clt_slab_table_finish(&t);
    float *w = clt_calloc(t.total, sizeof *w), *m = clt_calloc(t.total, sizeof *m);
    w[0] = 1.0f, w[1] = -2.0f, m[0] = 0.5f;
    static const unsigned char weights[] =
        "weight\0a\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\xc0";
    static const unsigned char moments[] = "exp_avg\0a\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0\0\x3f\0\0\0\0";
    clt_ckpt_part parts[] = {{.role = "weight", .host = w}, {.role = "exp_avg", .host = m}};
    clt_state_hash h;
    assert_int_equal(clt_ckpt_hash_parts(NULL, &t, parts, 2, &h), CLT_OK);
    clt_hash128 a = clt_hash(weights, sizeof weights - 1), b = clt_hash(moments, sizeof moments - 1);
    assert_memory_equal(&h.weights, &a, sizeof a);
    assert_memory_equal(&h.optimizer, &b, sizeof b);
    assert_int_equal(clt_ckpt_hash_parts(NULL, &t, parts, 1, &h), CLT_OK);
    assert_false(h.has_optimizer);
    clt_free(w);
    clt_free(m);
    clt_slab_table_free(&t);
}

/* --- damage --- */

static clt_status open_and_verify(const char *path) {
    clt_ckpt_reader *r = NULL;
    clt_status st = clt_ckpt_open(path, &r);
    if (st == CLT_OK) st = clt_ckpt_verify(r);
    clt_ckpt_close(r);
    return st;
}

/* One bit of every byte of every file is flipped (each bit in turn), and every file is cut at every length.
 */
static void test_every_byte(void **state) {
    (void)state;
    static const char *const files[] = {OLD "/manifest.json", OLD "/data.00000.bin"};
    cu_state s;
    memory_setup(&s);
    clt_error_quiet(true);
    for (int f = 0; f < 2; f++) {
        size_t n;
        unsigned char *data = mem_file(fs, files[f], &n);
        assert_true(data && n > 1000);
        for (size_t i = 0; i < n; i++) {
            data[i] ^= (unsigned char)(1 << i % 8);
            if (open_and_verify(OLD) != CLT_BAD_DATA)
                fail_msg("a change of byte %zu of %s was not found", i, files[f]);
            data[i] ^= (unsigned char)(1 << i % 8);
            if (f == 1 && !strstr(clt_last_error(), "data.00000.bin is damaged: tensor 'transformer."))
                fail_msg("the message names no tensor: %s", clt_last_error());
        }
        unsigned char *copy = clt_memdup(data, n);
        for (size_t i = 0; i <= n + 1; i++) { /* n + 1: one more byte */
            unsigned char *longer = clt_calloc(n + 2, 1);
            memcpy(longer, copy, n);
            clt_file *file;
            assert_int_equal(clt_file_open(files[f], CLT_IO_CREATE, &file), CLT_OK);
            assert_int_equal(clt_file_pwrite(file, longer, i, 0), CLT_OK);
            clt_file_close(file);
            assert_int_equal(open_and_verify(OLD), i == n ? CLT_OK : CLT_BAD_DATA);
            clt_free(longer);
        }
        clt_file *file;
        assert_int_equal(clt_file_open(files[f], CLT_IO_CREATE, &file), CLT_OK);
        assert_int_equal(clt_file_pwrite(file, copy, n, 0), CLT_OK);
        clt_file_close(file);
        clt_free(copy);
    }
    assert_int_equal(open_and_verify(OLD), CLT_OK);
    clt_error_quiet(false);
    memory_teardown(&s);
}

/* Chunks of the same size from another checkpoint, or from another place, are refused. */
static void test_swapped_chunks(void **state) {
    (void)state;
    cu_state s;
    memory_setup(&s);
    cu_state_fill(&s, 2);
    save(cu_params(&s, "mem:///run"), "ep0-ba2", 2);
    size_t n, m;
    unsigned char *a = mem_file(fs, OLD "/data.00000.bin", &n),
                  *b = mem_file(fs, "mem:///run/ep0-ba2/data.00000.bin", &m);
    assert_int_equal(n, m); /* noise of equal length is stored in equal length */
    unsigned char *keep = clt_memdup(a, n);
    memcpy(a, b, n);
    clt_error_quiet(true);
    assert_int_equal(open_and_verify(OLD), CLT_BAD_DATA);
    memcpy(a, keep, n);
    assert_int_equal(open_and_verify(OLD), CLT_OK);
    /* The two norms (8 elements each) of one role are consecutive and of equal length. */
    size_t norm = 0;
    for (size_t i = 0; i + 8 < n && !norm; i++) /* the second zstd frame begins with the magic number */
        if (i > 100 && !memcmp(a + i, "\x28\xb5\x2f\xfd", 4)) norm = i;
    size_t length = 0;
    for (size_t i = norm + 4; i + 4 < n && !length; i++)
        if (!memcmp(a + i, "\x28\xb5\x2f\xfd", 4)) length = i - norm;
    assert_true(length > 32 && norm + 2 * length <= n);
    memcpy(a + norm, keep + norm + length, length);
    memcpy(a + norm + length, keep + norm, length);
    assert_int_equal(open_and_verify(OLD), CLT_BAD_DATA);
    clt_error_quiet(false);
    clt_free(keep);
    memory_teardown(&s);
}

static void replace_manifest(const char *path, const char *from, const char *to) {
    char *text, *file = clt_path_join(path, "manifest.json");
    size_t n;
    assert_int_equal(clt_io_read_all(file, 1 << 20, &text, &n), CLT_OK);
    char *at = strstr(text, from);
    assert_non_null(at);
    clt_str b = {0};
    clt_str_addn(&b, text, (size_t)(at - text));
    clt_str_add(&b, to);
    clt_str_addn(&b, at + strlen(from), n - 45 - (size_t)(at - text) - strlen(from)); /* without the tail */
    char hex[33];
    clt_hash_hex(clt_hash(b.s, b.len), hex);
    clt_str_addf(&b, ",\n\"xxh3\":\"%s\"}\n", hex);
    assert_int_equal(clt_io_write_atomic(file, b.s, b.len), CLT_OK);
    clt_str_free(&b);
    clt_free(text);
    clt_free(file);
}

/* Manifests with a valid hash and invalid contents, as made with an editor. */
static void test_hostile_manifest(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"version\":1", "\"version\":2", "newer cltrain"},
        {"cltrain checkpoint", "something else", "format is"},
        {"\"name\":\"data.00000.bin\"", "\"name\":\"../data.00000.bin\"", "not a file name inside"},
        {"\"name\":\"data.00000.bin\"", "\"name\":\"/etc/passwd\"", "not a file name inside"},
        {"\"name\":\"data.00000.bin\"", "\"name\":\"data.00001.bin\"", "is missing"},
        {"\"shape\":[37,8]", "\"shape\":[37,9]", "do not cover"},
        {"\"shape\":[37,8]", "\"shape\":[37,-8]", "unusable size"},
        {"\"shape\":[37,8]", "\"shape\":[4294967296,4294967296,16]", "unusable size"},
        {"\"shape\":[37,8]", "\"shape\":[37,2,2,1,2]", "dimensions"},
        {"\"shape\":[37,8]", "\"shape\":[4611686018427387904]", "unusable size"},
        {"\"dtype\":\"f32\"", "\"dtype\":\"f16\"", "dtype"},
        {"transformer.norm_f.weight", "transformer.blocks.0.norm_1.weight", "listed twice"},
        {"\"role\":\"weight\"", "\"role\":\"../x\"", "role"},
        {"[0,0,296,0,0,", "[0,1,296,0,0,", "do not cover"},
        {"[0,0,296,0,0,", "[0,0,297,0,0,", "do not cover"},
        {"[0,0,296,0,0,", "[0,0,0,0,0,", "is invalid"},
        {"[0,0,296,0,0,", "[0,0,296,7,0,", "is invalid"},
        {"[0,0,296,0,0,", "[9999,0,296,0,0,", "is invalid"},
        {"[0,0,296,0,0,", "[0,0,296,0,1,", "hole or overlap"},
        {"[0,0,296,0,0,", "[0,0,296,0,9223372036854775807,", "is invalid"},
        {"[0,0,296,0,0,", "[0,0,1e300,0,0,", "is invalid"},
        {"\"run_id\":\"0123456789abcdef\"", "\"run_id\":\"../../../../etc\"", "run_id"},
        {"\"epoch\":1", "\"epoch\":-1", "timestamp.epoch"},
        {"\"epoch\":1", "\"epoch\":9223372036854775807", "timestamp.epoch"},
        {"\"lanes\":8", "\"lanes\":\"8\"", "run.lanes"},
        {"\"model\":{", "\"model\":7,\"x\":{", "model"},
    };
    cu_state s;
    memory_setup(&s);
    mem_state *clean = mem_save(fs);
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        mem_restore(fs, clean);
        replace_manifest(OLD, cases[i].from, cases[i].to);
        if (open_and_verify(OLD) != CLT_BAD_DATA) fail_msg("accepted: %s", cases[i].to);
        if (!strstr(clt_last_error(), cases[i].says))
            fail_msg("%s: the message is '%s'", cases[i].to, clt_last_error());
    }
    /* A time without a date is unknown. */
    clt_ckpt_info *list;
    int n;
    mem_restore(fs, clean);
    replace_manifest(OLD, "\"saved\":", "\"saved\":1e300,\"x\":");
    assert_int_equal(clt_ckpt_scan("mem:///run", &list, &n), CLT_OK);
    assert_int_equal(n, 1);
    assert_true(list[0].valid && list[0].saved == 0);
    clt_ckpt_scan_free(list, n);
    mem_restore(fs, clean);
    assert_int_equal(clt_io_unlink(OLD "/data.00000.bin"), CLT_OK);
    assert_int_equal(open_and_verify(OLD), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "data.00000.bin is missing"));
    clt_error_quiet(false);
    mem_free(clean);
    memory_teardown(&s);
}

/* --- another model --- */

static clt_status load_other(const clt_slab_table *t, const clt_load_options *opt) {
    clt_ckpt_reader *r;
    float *host = clt_calloc(t->total, sizeof *host);
    assert_int_equal(clt_ckpt_open(OLD, &r), CLT_OK);
    clt_status st = clt_ckpt_load(r, t, &(clt_ckpt_part){.role = "weight", .host = host}, 1, opt);
    clt_ckpt_close(r);
    clt_free(host);
    return st;
}

static void test_another_model(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t rows;
        bool all; /* also the other tensors */
        const char *says;
    } cases[] = {
        {"transformer.wte.weight", 38, true,
         "tensor 'transformer.wte.weight' (weight) has shape [37, 8], this model needs [38, 8]"},
        {"transformer.wpe.weight", 37, true, "tensor 'transformer.wpe.weight' (weight) is missing"},
        {"transformer.wte.weight", 37, false,
         "this model has no tensor 'transformer.blocks.0.norm_1.weight'"},
    };
    cu_state s;
    memory_setup(&s);
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        clt_slab_table t = {0};
        clt_slab_table_add(&t, cases[i].name, 2, (int64_t[]){cases[i].rows, 8});
        if (cases[i].all) {
            clt_slab_table_add(&t, "transformer.blocks.0.norm_1.weight", 1, (int64_t[]){8});
            clt_slab_table_add(&t, "transformer.norm_f.weight", 1, (int64_t[]){8});
        }
        clt_slab_table_finish(&t);
        assert_int_equal(load_other(&t, NULL), CLT_BAD_DATA);
        if (!strstr(clt_last_error(), cases[i].says)) fail_msg("the message is '%s'", clt_last_error());
        clt_load_options ignore = {(const char *const[]){"transformer.w?e.*", "*norm*"}, 2, false};
        assert_int_equal(load_other(&t, &ignore), CLT_OK);
        clt_load_options loose = {NULL, 0, true};
        clt_log_set_level(CLT_LOG_ERROR);
        assert_int_equal(load_other(&t, &loose),
                         i == 0 ? CLT_BAD_DATA : CLT_OK); /* a shape is never ignored */
        clt_log_set_level(CLT_LOG_WARN);
        clt_slab_table_free(&t);
    }
    clt_error_quiet(false);
    memory_teardown(&s);
}

/* --- a folder of checkpoints --- */

static bool there(const char *path) {
    return clt_io_is_dir(path);
}

static void test_folder(void **state) {
    (void)state;
    cu_state s;
    clt_ckpt_writer *w;
    char *path = NULL, name[32];
    memory_setup(&s);
    clt_ckpt_writer_params p = cu_params(&s, "mem:///run");
    p.keep = 1; /* at least two are kept */
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    for (int b = 8; b <= 12; b++) { /* numbers decide what is newest, not names */
        clt_checkpoint_state n = cu_numbers(b);
        snprintf(name, sizeof name, "ep0-ba%d", b);
        assert_int_equal(clt_ckpt_save(w, name, &n), CLT_OK);
    }
    assert_false(there(OLD) || there("mem:///run/ep0-ba10"));
    assert_true(there("mem:///run/ep0-ba11") && there("mem:///run/ep0-ba12"));
    assert_int_equal(clt_ckpt_find_newest(NULL, "mem:///run", &path), CLT_OK);
    assert_string_equal(path, "mem:///run/ep0-ba12");
    clt_free(path);
    assert_int_equal(clt_ckpt_resolve(NULL, "mem:///run/latest", &path), CLT_OK);
    assert_string_equal(path, "mem:///run/ep0-ba12");
    clt_free(path);

    /* The newest is damaged: the one before it is used. */
    size_t n;
    mem_file(fs, "mem:///run/ep0-ba12/manifest.json", &n)[100] ^= 1;
    clt_log_set_level(CLT_LOG_ERROR);
    assert_int_equal(clt_ckpt_find_newest(NULL, "mem:///run", &path), CLT_OK);
    assert_string_equal(path, "mem:///run/ep0-ba11");
    clt_free(path);
    mem_file(fs, "mem:///run/ep0-ba12/manifest.json", &n)[100] ^= 1;

    /* Saving a batch again in the same run succeeds and writes nothing; another run must not overwrite it. */
    clt_checkpoint_state again = cu_numbers(12);
    assert_int_equal(clt_ckpt_save(w, "ep0-ba12", &again), CLT_OK);
    clt_ckpt_writer_destroy(w);
    p.run_id = "fedcba9876543210";
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_save(w, "ep0-ba12", &again), CLT_IO);
    assert_int_equal(clt_ckpt_save(w, "a/b", &again), CLT_BAD_CONFIG);
    assert_int_equal(clt_ckpt_save(w, "..", &again), CLT_BAD_CONFIG);
    clt_error_quiet(false);

    /* Resuming at 11 supersedes 12, which can then be saved again. */
    assert_int_equal(clt_ckpt_supersede(NULL, "mem:///run", 11, p.run_id), CLT_OK);
    assert_true(there("mem:///run/ep0-ba12.superseded.fedcba9876543210"));
    assert_int_equal(clt_ckpt_save(w, "ep0-ba12", &again), CLT_OK);
    clt_log_set_level(CLT_LOG_WARN);
    clt_ckpt_writer_destroy(w);
    memory_teardown(&s);
}

static void test_overwrite_and_leftovers(void **state) {
    (void)state;
    cu_state s;
    memory_setup(&s);
    assert_int_equal(clt_io_mkdirs("mem:///run/ep0-ba5.tmp.00000000000000ff"), CLT_OK);
    assert_int_equal(clt_io_mkdirs("mem:///run/notes.tmp.d"), CLT_OK); /* not ours */
    cu_state_fill(&s, 3);
    clt_ckpt_writer_params p = cu_params(&s, "mem:///run");
    p.overwrite = true;
    p.run_id = "fedcba9876543210";
    save(p, "ep0-ba1", 1);
    assert_int_equal(cu_check(OLD, &s), CLT_OK);
    clt_strv names = {0};
    assert_int_equal(clt_io_list("mem:///run", &names), CLT_OK);
    assert_int_equal(names.n, 3); /* ep0-ba1, latest, notes.tmp.d */
    assert_string_equal(names.v[2], "notes.tmp.d");
    clt_strv_free(&names);
    /* A folder that is not a checkpoint is not overwritten, since all its contents would be deleted. */
    clt_ckpt_writer *w;
    clt_checkpoint_state state_of_2 = cu_numbers(2);
    assert_int_equal(clt_io_mkdirs("mem:///run/thesis/empty"), CLT_OK);
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    clt_log_set_level(CLT_LOG_ERROR);
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_save(w, "thesis", &state_of_2), CLT_IO);
    clt_error_quiet(false);
    clt_log_set_level(CLT_LOG_WARN);
    assert_true(there("mem:///run/thesis/empty"));
    assert_int_equal(clt_io_remove_tree("mem:///run/thesis/empty"), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, "thesis", &state_of_2), CLT_OK);
    clt_ckpt_writer_destroy(w);
    memory_teardown(&s);
}

static void test_resolve(void **state) {
    (void)state;
    char *path = NULL;
    cu_state s;
    memory_setup(&s);
    assert_int_equal(clt_io_mkdirs("mem:///empty"), CLT_OK);
    /* The root of a disk has a folder that only root can read. */
    assert_int_equal(clt_io_mkdirs("mem:///disk/lost+found"), CLT_OK);
    assert_int_equal(clt_io_write_atomic("mem:///disk/lost+found/data.00000.bin", "x", 1), CLT_OK);
    assert_int_equal(clt_ckpt_find_newest(NULL, "mem:///disk", &path), CLT_OK);
    assert_null(path);
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_resolve(NULL, "mem:///absent", &path), CLT_IO);
    assert_int_equal(clt_ckpt_resolve(NULL, "mem:///empty", &path), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_null(path);
    assert_int_equal(clt_ckpt_find_newest(NULL, "mem:///absent", &path), CLT_OK);
    assert_null(path);
    assert_int_equal(clt_ckpt_resolve(NULL, OLD, &path), CLT_OK);
    assert_string_equal(path, OLD);
    clt_free(path);
    memory_teardown(&s);
}

/* A save allocates nothing that stays, and many saves need no more memory than one. */
static void test_steady(void **state) {
    (void)state;
    char *dir = temporary_folder(), name[32];
    cu_state s;
    cu_state_create(&s, false, 5);
    clt_ckpt_writer_params p = cu_params(&s, dir);
    clt_ckpt_writer *w;
    p.keep = 2;
    p.threads = 2;
    clt_log_set_level(CLT_LOG_WARN);
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    for (int b = 1; b <= 20; b++) {
        clt_checkpoint_state n = cu_numbers(b);
        snprintf(name, sizeof name, "ba%d", b);
        assert_int_equal(clt_ckpt_save_begin(w, name, &n), CLT_OK);
        while (!clt_ckpt_save_ready(w)) clt_sleep(1e-4);
        assert_int_equal(clt_ckpt_save_finish(w), CLT_OK);
    }
    clt_ckpt_info *list;
    int n;
    assert_int_equal(clt_ckpt_scan(dir, &list, &n), CLT_OK);
    assert_int_equal(n, 2);
    assert_true(list[0].batch == 20 && list[1].batch == 19 && list[0].valid);
    clt_ckpt_scan_free(list, n);
    clt_ckpt_writer_destroy(w);
    cu_state_free(&s);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_old_version),
        cmocka_unit_test(test_hash_definition),
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_swapped_chunks),
        cmocka_unit_test(test_hostile_manifest),
        cmocka_unit_test(test_another_model),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_overwrite_and_leftovers),
        cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_steady),
    };
    clt_log_set_level(CLT_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
