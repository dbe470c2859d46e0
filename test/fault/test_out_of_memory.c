/* Memory runs out: the N-th allocation fails, for N = 1, 2, ... until none fails. That includes the
 * allocations of libraries. Each attempt is a process of its own.
 *
 * - Any allocation, while a configuration is read, a checkpoint is saved and one is loaded: the program ends
 *   cleanly with the message of clt_malloc, or the function returns an error and leaks nothing; and
 *   existing checkpoints are whole.
 * - Any allocation of at least LARGE bytes, whose size follows from a file, a model or a batch: the function
 *   returns CLT_NO_MEMORY with a message, leaks nothing, and the process continues. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/data/clt_convert.h"
#include "runtime/data/clt_loader.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/train/config/clt_config.h"
#include "test/ckpt_util.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
    puts("skip: a sanitizer has its own allocator");
    return 0;
}
#else

/* --- the allocator: glibc's, except for one call --- */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static atomic_long countdown, live; /* countdown 0: no failure */
static atomic_bool failed;
static size_t smallest; /* allocations below it do not count */

static bool fails(size_t n) {
    if (n < smallest || atomic_load(&countdown) == 0 || atomic_fetch_sub(&countdown, 1) != 1) return false;
    atomic_store(&failed, true);
    errno = ENOMEM;
    return true;
}
static void *count(void *p) {
    if (p) atomic_fetch_add(&live, 1);
    return p;
}
void *malloc(size_t n) {
    return fails(n) ? NULL : count(__libc_malloc(n));
}
void *calloc(size_t n, size_t size) {
    return fails(n * size) ? NULL : count(__libc_calloc(n, size));
}
void *realloc(void *p, size_t n) {
    if (fails(n)) return NULL;
    return p ? __libc_realloc(p, n) : count(__libc_malloc(n));
}
void *aligned_alloc(size_t align, size_t n) {
    return fails(n) ? NULL : count(__libc_memalign(align, n));
}
int posix_memalign(void **out, size_t align, size_t n) {
    *out = fails(n) ? NULL : count(__libc_memalign(align, n));
    return *out ? 0 : 12;
}
void free(void *p) {
    if (p) atomic_fetch_sub(&live, 1);
    __libc_free(p);
}

/* --- workloads --- */

static char dir[] = "/tmp/clt_oom_XXXXXX";
static cu_state state_a;

static clt_status load_config(void) {
    clt_config *c = NULL;
    clt_status st = clt_config_load("test/golden/mpt-learned/train.yaml", NULL, 0, &c);
    if (st == CLT_OK) clt_config_free(c);
    return st;
}

static clt_status save(int64_t batch) {
    clt_ckpt_writer *w = NULL;
    clt_ckpt_writer_params p = cu_params(&state_a, dir);
    clt_checkpoint_state n = cu_numbers(batch);
    p.overwrite = true;
    CLT_TRY(clt_ckpt_writer_create(&p, &w));
    clt_status st = clt_ckpt_save(w, batch == 1 ? "ba1" : "ba2", &n);
    clt_ckpt_writer_destroy(w);
    return st;
}
static clt_status save_again(void) {
    return save(2);
}

static clt_status load(void) {
    char *path = NULL;
    clt_ckpt_reader *r = NULL;
    CLT_TRY(clt_ckpt_find_newest(NULL, dir, &path));
    clt_status st = path ? clt_ckpt_open(path, &r) : CLT_FAIL;
    if (st == CLT_OK) st = clt_ckpt_load(r, &state_a.table, state_a.part, CU_PARTS, NULL);
    clt_ckpt_close(r);
    clt_free(path);
    return st;
}

/* --- workloads with large allocations --- */

enum { LARGE = 16384, TENSORS = 1500, SAMPLES = 4000, TOKENS = 24 };

static cu_state state_large;
static char set[64], weights[64]; /* a dataset, a safetensors file */

/* Many tensors, so that the lists of them are large, and one large tensor. */
static void create_large(void) {
    clt_slab_table_add(&state_large.table, "large", 1, (int64_t[]){60000});
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%04d", i);
        clt_slab_table_add(&state_large.table, name, 1, (int64_t[]){3});
    }
    clt_slab_table_finish(&state_large.table);
    static const char *const roles[] = {"weight", "exp_avg", "exp_avg_sq"};
    for (int p = 0; p < CU_PARTS; p++) {
        state_large.host[p] = clt_calloc(state_large.table.total, sizeof(float));
        state_large.part[p] = (clt_ckpt_part){.role = roles[p], .host = state_large.host[p]};
    }
    cu_state_fill(&state_large, 3);
}

static clt_status save_large_as(bool snapshot, const char *folder) {
    clt_ckpt_writer *w = NULL;
    clt_ckpt_writer_params p = cu_params(&state_large, folder);
    clt_checkpoint_state n = cu_numbers(3);
    p.overwrite = true;
    p.snapshot = snapshot;
    CLT_TRY(clt_ckpt_writer_create(&p, &w));
    clt_status st = clt_ckpt_save(w, "large", &n);
    clt_ckpt_writer_destroy(w);
    return st;
}
static char large_folder[64];
static clt_status save_large(void) {
    return save_large_as(false, large_folder);
}
static clt_status save_snapshot(void) {
    return save_large_as(true, large_folder);
}

static clt_status load_large(void) {
    char *path = NULL;
    clt_ckpt_reader *r = NULL;
    clt_state_hash hash;
    CLT_TRY(clt_ckpt_find_newest(NULL, large_folder, &path));
    clt_status st = clt_ckpt_open(path, &r);
    if (st == CLT_OK) st = clt_ckpt_load(r, &state_large.table, state_large.part, CU_PARTS, NULL);
    if (st == CLT_OK) st = clt_ckpt_hash(r, &hash);
    clt_ckpt_close(r);
    clt_free(path);
    return st;
}

static clt_status fill_tensor(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    (void)ctx, (void)index, (void)first;
    memset(dst, 0, count * sizeof *dst);
    return CLT_OK;
}

static clt_status write_weights(void) {
    static char name[TENSORS][16];
    static clt_st_spec spec[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name[i], sizeof name[i], "t%d", i);
        spec[i] = (clt_st_spec){name[i], CLT_ST_BF16, 1, {8}};
    }
    return clt_safetensors_write(weights, spec, TENSORS, NULL, 0, fill_tensor, NULL);
}

static clt_status read_weights(void) {
    clt_weight_source *s = NULL;
    float value[8];
    CLT_TRY(clt_weight_source_open(weights, &s));
    clt_status st = clt_weight_source_verify(s, NULL);
    if (st == CLT_OK) st = clt_weight_source_read(s, 0, 0, value, 8);
    clt_weight_source_close(s);
    return st;
}

static const char *compression = "zstd";

static clt_status write_set(void) {
    clt_mds_writer *w;
    clt_mds_writer_params p;
    int32_t tokens[TOKENS] = {0};
    CLT_TRY(clt_io_remove_tree(set));
    clt_mds_writer_params_default(&p);
    p.compression = compression;
    p.hashes = "xxh64,sha1";
    p.size_limit = 200000;
    CLT_TRY(clt_mds_writer_create(set, &p, &w));
    for (int i = 0; i < SAMPLES; i++) {
        tokens[0] = i;
        clt_status st = clt_mds_writer_add(w, tokens, TOKENS);
        if (st == CLT_OK) continue;
        clt_mds_writer_abort(w);
        return st;
    }
    return clt_mds_writer_finish(w);
}

static clt_status read_set(void) {
    clt_loader_params p;
    clt_loader *l = NULL;
    clt_batch b;
    clt_loader_params_default(&p);
    p.local = set;
    p.max_seq_len = TOKENS;
    p.max_rows = 512;
    p.shuffle = true;
    CLT_TRY(clt_loader_open(&p, &l));
    clt_status st = clt_loader_get(l, 0, 0, 512, &b);
    clt_loader_close(l);
    return st;
}

static clt_status verify_set(void) {
    clt_mds *m;
    size_t bad;
    CLT_TRY(clt_mds_open(set, NULL, &m));
    clt_status st = clt_mds_verify(m, 0, NULL, &bad);
    clt_mds_close(m);
    return st;
}

static clt_status collect(void *ctx, const int32_t *ids, size_t n) {
    clt_token_decoder *d = ctx;
    clt_str text = {0};
    clt_status st = clt_tokenizer_decode(d->t, ids, n, false, &text);
    clt_str_free(&text);
    return st;
}

static clt_status tokenize(void) {
    static char text[3 * LARGE];
    clt_tokenizer *t;
    CLT_TRY(clt_tokenizer_open("bytes", &t));
    clt_token_decoder d = clt_token_decoder_begin(t, false);
    clt_token_encoder *e = clt_token_encoder_create(t, CLT_TOKEN_SPECIAL, collect, &d);
    clt_status st = clt_token_encoder_add(e, text, sizeof text);
    if (st == CLT_OK) st = clt_token_encoder_end(e);
    clt_token_encoder_destroy(e);
    clt_tokenizer_close(t);
    return st;
}

static clt_status count_tokens(void *ctx, const int32_t *ids, size_t n) {
    (void)ids;
    *(size_t *)ctx += n;
    return CLT_OK;
}

/* A long line and a long text file. */
static clt_status convert(void) {
    char *line = clt_path_join(dir, "line.jsonl"), *text = clt_path_join(dir, "text");
    clt_convert_counts counts;
    clt_tokenizer *t;
    size_t tokens = 0;
    CLT_TRY(clt_tokenizer_open("bytes", &t));
    const clt_docs_file files[] = {{line, CLT_DOCS_JSONL}, {text, CLT_DOCS_TEXT}};
    const clt_convert_params p = {
        .tokenizer = t, .length = LARGE, .threads = 1, .tokens = count_tokens, .ctx = &tokens};
    clt_status st = clt_convert(files, CLT_COUNT_OF(files), &p, &counts);
    clt_tokenizer_close(t);
    clt_free(line);
    clt_free(text);
    return st;
}

static void create_texts(void) {
    char *line = clt_path_join(dir, "line.jsonl"), *text = clt_path_join(dir, "text");
    clt_str b = {0};
    clt_str_addf(&b, "{\"text\": \"%0*d\"}", 3 * LARGE, 1);
    assert_int_equal(clt_io_write_atomic(line, b.s, b.len), CLT_OK);
    assert_int_equal(clt_io_write_atomic(text, b.s, b.len), CLT_OK);
    clt_str_free(&b);
    clt_free(line);
    clt_free(text);
}

/* --- one attempt --- */

enum { SURVIVED = 40, NOT_REACHED = 41, LEAK = 42, WRONG = 43, RETURNED = 44, OTHER_STATUS = 45 };

static void child(clt_status (*run)(void), long n, int out) {
    dup2(out, 2);
    long before = atomic_load(&live);
    atomic_store(&countdown, n);
    clt_status st = run();
    atomic_store(&countdown, 0);
    if (!atomic_load(&failed)) _exit(st == CLT_OK ? NOT_REACHED : WRONG);
    long after = atomic_load(&live);
    if (after > before) dprintf(2, "%ld blocks are left\n", after - before);
    if (after > before) _exit(LEAK);
    _exit(st == CLT_OK ? SURVIVED : st == CLT_NO_MEMORY || !smallest ? RETURNED : OTHER_STATUS);
}

static int attempt(clt_status (*run)(void), long n, char *said, size_t bytes) {
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) child(run, n, pipes[1]);
    close(pipes[1]);
    size_t got = 0;
    for (ssize_t k; (k = read(pipes[0], said + got, bytes - 1 - got)) > 0;) got += (size_t)k;
    said[got] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status)) fail_msg("allocation %ld: signal %d: %s", n, WTERMSIG(status), said);
    return WEXITSTATUS(status);
}

static void every_allocation(const char *what, clt_status (*run)(void)) {
    static char said[1 << 16];
    long n = 1, ended = 0, returned = 0, survived = 0;
    assert_int_equal(run(), CLT_OK); /* libraries have allocated what they keep */
    for (;; n++) {
        int code = attempt(run, n, said, sizeof said);
        if (code == NOT_REACHED) break;
        if (code == 1 && strstr(said, "out of host memory"))
            ended++;
        else if (code == RETURNED && *said)
            returned++;
        else if (code == SURVIVED)
            survived++;
        else
            fail_msg("%s: allocation %ld: code %d: %s", what, n, code, said);
        clt_status st = cu_check(clt_path_join(dir, "ba1"), &state_a);
        if (st != CLT_OK) fail_msg("%s: allocation %ld: the existing checkpoint is damaged", what, n);
    }
    print_message(
        "%s: %ld allocations failed: %ld ended the process, %ld returned an error, %ld had no effect\n", what,
        n - 1, ended, returned, survived);
    assert_true(n > 20);
}

/* Large ones: never the end of the program, always CLT_NO_MEMORY. */
static void every_large_allocation(const char *what, clt_status (*run)(void)) {
    static char said[1 << 16];
    long n = 1, returned = 0, survived = 0;
    assert_int_equal(run(), CLT_OK);
    smallest = LARGE;
    for (;; n++) {
        int code = attempt(run, n, said, sizeof said);
        if (code == NOT_REACHED) break;
        if (code == RETURNED && (strstr(said, "out of host memory") || strstr(said, strerror(ENOMEM))))
            returned++;
        else if (code == SURVIVED) /* sorting works without memory */
            survived++;
        else
            fail_msg("%s: large allocation %ld: code %d: %s", what, n, code, said);
    }
    smallest = 0;
    print_message("%s: %ld large allocations failed: %ld gave CLT_NO_MEMORY, %ld did not matter\n", what,
                  n - 1, returned, survived);
    assert_true(returned >= 2);
}

static void test_large(void **state) {
    (void)state;
    snprintf(large_folder, sizeof large_folder, "%s/large", dir);
    snprintf(set, sizeof set, "%s/set", dir);
    snprintf(weights, sizeof weights, "%s/w.safetensors", dir);
    create_large();
    every_large_allocation("saving a checkpoint", save_large);
    every_large_allocation("saving a checkpoint from a copy of the state", save_snapshot);
    every_large_allocation("loading a checkpoint", load_large);
    every_large_allocation("writing safetensors", write_weights);
    every_large_allocation("reading safetensors", read_weights);
    every_large_allocation("writing a dataset", write_set);
    every_large_allocation("reading batches", read_set);
    every_large_allocation("checking a dataset", verify_set);
    every_large_allocation("tokenizing", tokenize);
    create_texts();
    every_large_allocation("converting text", convert);
    static const char *const others[] = {"gz:1", "bz2:1", "br:2"};
    for (size_t i = 0; i < CLT_COUNT_OF(others); i++) {
        compression = others[i];
        every_large_allocation(others[i], write_set);
        every_large_allocation(others[i], verify_set);
    }
    cu_state_free(&state_large);
}

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    cu_state_create(&state_a, false, 1);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    cu_state_free(&state_a);
    return clt_io_remove_tree(dir) == CLT_OK ? 0 : -1;
}

static void test_any(void **state) {
    (void)state;
    assert_int_equal(save(1), CLT_OK);
    every_allocation("reading a configuration", load_config);
    every_allocation("saving a checkpoint", save_again);
    every_allocation("loading a checkpoint", load);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any), cmocka_unit_test(test_large)};
    clt_log_set_level(CLT_LOG_ERROR);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
#endif
