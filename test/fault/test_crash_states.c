/* Loss of power during a save, exhaustively. A save of one rank and of two is recorded by clt_io_probe on a
 * real file system; then every valid crash state of the record is built on memfs and recovery is run on it:
 *
 * - the operations up to any point have been called;
 * - of the writes and changes of folders that are not synced at that point any subset is on the disk (all
 * subsets of up to 6 changes; of more, those with at most one missing or at most one present);
 * - the last write of a file is torn at any multiple of 512 bytes.
 *
 * Recovery must find the old checkpoint or the new one, whole; the new one if its save returned CLT_OK; and
 * the name of a checkpoint must not hold anything else. CRASH_SUBSETS sets up to how many changes all subsets
 * are built. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io_probe.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"
#include "test/thread_group.h"

/* What is saved in a folder that has ba1 and ba2 of the old state, and how. */
typedef struct {
    const char *what, *name;
    int ranks;
    bool overwrite, no_exchange, first; /* first: no old checkpoint */
} workload;

typedef struct {
    const workload *w;
    char dir[64];
    cu_state old, new;
    const cu_state *saving;
    const char *run_id, *name;
    int64_t batch;
    bool overwrite;
    clt_status status[TG_MAX_RANKS];
    clt_io_entry *op;
    size_t setup, ops; /* recorded operations: before the save, all */
    long states, old_found, new_found, none_found;
} scene;

static memfs *fs; /* mem:///, where the states are built */
static int limit = 6, few = 1;

/* --- the record --- */

static int no_exchange(clt_io_component *c, const char *a, const char *b) {
    (void)c, (void)a, (void)b;
    return EINVAL;
}

static void rank_saves(clt_group *g, void *ctx) {
    scene *c = ctx;
    char *folder = clt_format("recorded://%s/run", c->dir);
    clt_ckpt_writer_params p = cu_params((cu_state *)c->saving, folder);
    clt_checkpoint_state numbers = cu_numbers(c->batch);
    clt_ckpt_writer *w = NULL;
    p.group = g;
    p.keep = 2;
    p.overwrite = c->overwrite;
    p.run_id = c->run_id;
    clt_status st = clt_ckpt_writer_create(&p, &w);
    if (st == CLT_OK) st = clt_ckpt_save(w, c->name, &numbers);
    clt_ckpt_writer_destroy(w);
    c->status[clt_group_rank(g)] = st;
    clt_free(folder);
}

static void save(scene *c, const cu_state *state, const char *run_id, int64_t batch, const char *name,
                 bool overwrite) {
    c->saving = state;
    c->run_id = run_id;
    c->batch = batch;
    c->name = name;
    c->overwrite = overwrite;
    tg_run(c->w->ranks, rank_saves, c);
    for (int r = 0; r < c->w->ranks; r++) assert_int_equal(c->status[r], CLT_OK);
}

static void record(scene *c) {
    clt_io_ops ops = *clt_io_local()->ops;
    clt_io_component disk = *clt_io_local();
    clt_io_probe *probe = clt_io_probe_create(&disk);
    char *log = clt_format("%s/log", c->dir);
    size_t before = 0;
    clt_io_entry *list;
    disk.ops = &ops;
    if (c->w->no_exchange) ops.exchange = no_exchange;
    assert_int_equal(clt_io_record(probe, log), CLT_OK);
    assert_int_equal(clt_io_register("recorded", clt_io_probe_component(probe)), CLT_OK);
    if (!c->w->first) {
        save(c, &c->old, "00000000000000aa", 1, "ba1", false);
        save(c, &c->old, "00000000000000aa", 2, "ba2", false);
        assert_int_equal(clt_io_record_read(log, &list, &before), CLT_OK);
        clt_io_record_free(list, before);
    }
    save(c, &c->new, "00000000000000bb", 3, c->w->name, c->w->overwrite);
    clt_io_unregister("recorded");
    clt_io_probe_destroy(probe);
    assert_int_equal(clt_io_record_read(log, &c->op, &c->ops), CLT_OK);
    c->setup = before;
    assert_true(c->ops - c->setup > 12);
    clt_free(log);
}

/* --- replay --- */

static const char *inside(const scene *c, const char *path) {
    size_t n = strlen(c->dir);
    assert_int_equal(strncmp(path, c->dir, n), 0);
    return path[n] ? path + n : "/";
}

static int play_file(const clt_io_entry *e, const char *path) {
    clt_io_component *mem = mem_component(fs);
    void *h;
    size_t done;
    int err = mem->ops->open(mem, path, e->op == CLT_IO_OPEN ? e->mode : CLT_IO_APPEND, &h);
    if (err || e->op == CLT_IO_OPEN) return err;
    if (e->op == CLT_IO_PWRITE) return mem->ops->pwrite(mem, h, e->data, e->bytes, e->offset, &done);
    if (e->op == CLT_IO_APPENDS) return mem->ops->append(mem, h, e->data, e->bytes, &done);
    return mem->ops->sync(mem, h);
}

static void play(const scene *c, const clt_io_entry *e) {
    const char *path = inside(c, e->path), *to = e->to ? inside(c, e->to) : NULL;
    clt_io_component *mem = mem_component(fs);
    int err = 0;
    switch (e->op) {
    case CLT_IO_RENAME:
        err = mem->ops->rename(mem, path, to);
        break;
    case CLT_IO_EXCHANGE:
        err = mem->ops->exchange(mem, path, to);
        break;
    case CLT_IO_UNLINK:
        err = mem->ops->unlink(mem, path);
        break;
    case CLT_IO_RMDIR:
        err = mem->ops->rmdir(mem, path);
        break;
    case CLT_IO_MKDIR:
        err = mem->ops->mkdir(mem, path);
        break;
    case CLT_IO_SYNC_DIR:
        err = mem->ops->sync_dir(mem, path);
        break;
    default:
        err = play_file(e, path);
    }
    if (err) fail_msg("cannot play %s of %s: %s", clt_io_op_name(e->op), e->path, strerror(err));
}

/* --- one crash state --- */

static bool is(const char *path, const cu_state *s) {
    return cu_check(path, s) == CLT_OK;
}

/* Every name that looks like a checkpoint is one of the two states. */
static void check_all(scene *c, size_t at) {
    clt_ckpt_info *list = NULL;
    int n = 0;
    if (!clt_io_is_dir("mem:///run")) return;
    assert_int_equal(clt_ckpt_scan("mem:///run", &list, &n), CLT_OK);
    for (int i = 0; i < n; i++)
        if (!is(list[i].path, &c->old) && !is(list[i].path, &c->new))
            fail_msg("%s: after operation %zu: %s is damaged: %s", c->w->what, at, list[i].path,
                     clt_last_error());
    clt_ckpt_scan_free(list, n);
}

static void check_state(scene *c, size_t at, const mem_state *base, const size_t *keep) {
    char *path = NULL;
    mem_restore(fs, base);
    mem_crash_as(fs, keep);
    c->states++;
    assert_int_equal(clt_ckpt_recover(NULL, "mem:///run"), CLT_OK);
    check_all(c, at);
    assert_int_equal(clt_ckpt_find_newest(NULL, "mem:///run", &path), CLT_OK);
    if (!path) {
        if (!c->w->first || at == c->ops)
            fail_msg("%s: after operation %zu of %zu no checkpoint is found", c->w->what, at, c->ops);
        c->none_found++;
        return;
    }
    if (!c->w->first && strcmp(clt_path_base(path), "ba2") != 0 &&
        strcmp(clt_path_base(path), c->w->name) != 0)
        fail_msg("%s: after operation %zu: back to %s, older than what had been saved", c->w->what, at, path);
    bool is_new = is(path, &c->new);
    if (!is_new && !is(path, &c->old))
        fail_msg("%s: after operation %zu: %s is damaged", c->w->what, at, path);
    if (at == c->ops && !is_new) fail_msg("%s: the save returned CLT_OK and is lost", c->w->what);
    *(is_new ? &c->new_found : &c->old_found) += 1;
    clt_free(path);
}

/* --- the states --- */

static void check_torn(scene *c, size_t at, const mem_state *base, const mem_change *change, int n,
                       size_t *keep) {
    for (int i = 0; i < n; i++) {
        if (!change[i].last) continue;
        size_t whole = keep[i];
        for (size_t bytes = 512; bytes < change[i].bytes; bytes += 512) {
            keep[i] = bytes;
            check_state(c, at, base, keep);
        }
        keep[i] = whole;
    }
}

static int bits(unsigned long v) {
    return __builtin_popcountl(v);
}

static void check_point(scene *c, size_t at) {
    mem_change change[MEM_CHANGES];
    size_t keep[MEM_CHANGES];
    int n = mem_pending(fs, change, MEM_CHANGES);
    mem_state *base = mem_save(fs);
    assert_true(n < 40);
    for (unsigned long mask = 0; mask < 1ul << n; mask++) {
        int kept = bits(mask);
        if (n > limit && kept > few && kept < n - few) continue;
        for (int i = 0; i < n; i++) keep[i] = mask >> i & 1 ? change[i].bytes : 0;
        check_state(c, at, base, keep);
        if (kept == n) check_torn(c, at, base, change, n, keep);
    }
    mem_restore(fs, base);
    mem_free(base);
}

static void run_workload(const workload *w) {
    scene c = {.w = w, .dir = "/tmp/clt_crash_XXXXXX"};
    assert_non_null(mkdtemp(c.dir));
    cu_state_create(&c.old, false, 1);
    cu_state_create(&c.new, false, 2);
    record(&c);
    clt_error_quiet(true);
    fs = mem_mount("mem");
    for (size_t i = 0; i < c.ops; i++) {
        if (i >= c.setup) check_point(&c, i);
        play(&c, &c.op[i]);
    }
    check_point(&c, c.ops);
    clt_error_quiet(false);
    print_message("%-44s %3zu operations, states %ld: old %ld, new %ld, none before the first %ld, bad 0\n",
                  w->what, c.ops - c.setup, c.states, c.old_found, c.new_found, c.none_found);
    assert_true(c.new_found > 0 && (w->first || c.old_found > 0));
    clt_io_record_free(c.op, c.ops);
    cu_state_free(&c.old);
    cu_state_free(&c.new);
    clt_io_unregister("mem");
    mem_destroy(fs);
    clt_io_remove_tree(c.dir);
}

static void test_crash_states(void **state) {
    static const workload all[] = {
        {"1 rank, a new checkpoint, one is pruned", "ba3", 1},
        {"2 ranks, a new checkpoint, one is pruned", "ba3", 2},
        {"1 rank, names exchanged", "ba2", 1, .overwrite = true},
        {"2 ranks, names exchanged", "ba2", 2, .overwrite = true},
        {"1 rank, names that cannot be exchanged", "ba2", 1, .overwrite = true, .no_exchange = true},
        {"1 rank, the first checkpoint", "ba1", 1, .first = true},
        {"2 ranks, the first checkpoint", "ba1", 2, .first = true},
    };
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) run_workload(&all[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_crash_states)};
    const char *subsets = getenv("CRASH_SUBSETS");
    if (subsets && sscanf(subsets, "%d %d", &limit, &few) != 2) return 2;
    clt_log_set_level(CLT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
