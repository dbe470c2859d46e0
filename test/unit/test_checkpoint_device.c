/* Checkpoints of slabs on devices: saved from slabs that are cut in one way and loaded into others, on every
 * device. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "test/ckpt_util.h"
#include "test/test_util.h"

static void slabs_create(const cu_state *s, int device, uint64_t piece, clt_slab **slab,
                         clt_ckpt_part *part) {
    for (int p = 0; p < CU_PARTS; p++) {
        assert_int_equal(clt_slab_create(tu_device(device), &s->table, piece, s->part[p].role, &slab[p]),
                         CLT_OK);
        part[p] = (clt_ckpt_part){.role = s->part[p].role, .slab = slab[p]};
    }
}

static void slabs_destroy(clt_slab **slab) {
    for (int p = 0; p < CU_PARTS; p++) clt_slab_destroy(slab[p]);
}

static void test_slabs(void **state) {
    (void)state;
    static const uint64_t pieces[] = {CLT_CHUNK * 4,
                                      0}; /* one chunk per piece where tensors allow it; the default */
    char dir[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "ba1");
    cu_state s;
    clt_state_hash host, device;
    cu_state_create(&s, !tu_tiny(), 11);
    assert_int_equal(clt_ckpt_hash_parts(NULL, &s.table, s.part, CU_PARTS, &host), CLT_OK);
    for (int d = 0; d < tu_device_count(); d++)
        for (int i = 0; i < 2; i++) {
            clt_slab *from[CU_PARTS], *to[CU_PARTS];
            clt_ckpt_part part[CU_PARTS];
            clt_checkpoint_state numbers = cu_numbers(1);
            clt_ckpt_writer *w;
            clt_ckpt_reader *r;
            slabs_create(&s, d, pieces[i], from, part);
            for (int p = 0; p < CU_PARTS; p++)
                assert_int_equal(clt_slab_write(from[p], 0, s.host[p], s.table.total), CLT_OK);
            clt_ckpt_writer_params params = cu_params(&s, dir);
            params.parts = part;
            params.threads = -1;
            params.overwrite = true;
            params.run_id = (const char *[]){"00000000000000aa", "00000000000000bb"}[i];
            assert_int_equal(clt_ckpt_writer_create(&params, &w), CLT_OK);
            assert_int_equal(clt_ckpt_save(w, "ba1", &numbers), CLT_OK);
            clt_ckpt_writer_destroy(w);
            slabs_destroy(from);

            slabs_create(&s, d, pieces[1 - i], to, part);
            assert_int_equal(clt_ckpt_open(path, &r), CLT_OK);
            assert_int_equal(clt_ckpt_load(r, &s.table, part, CU_PARTS, NULL), CLT_OK);
            clt_ckpt_close(r);
            float *got = clt_calloc(s.table.total, sizeof *got);
            for (int p = 0; p < CU_PARTS; p++) {
                assert_int_equal(clt_slab_read(to[p], 0, got, s.table.total), CLT_OK);
                assert_memory_equal(got, s.host[p], s.table.total * sizeof *got); /* also the padding: +0 */
            }
            clt_free(got);
            assert_int_equal(clt_ckpt_hash_parts(NULL, &s.table, part, CU_PARTS, &device), CLT_OK);
            assert_memory_equal(&device.weights, &host.weights, sizeof host.weights);
            assert_memory_equal(&device.optimizer, &host.optimizer, sizeof host.optimizer);
            slabs_destroy(to);
        }
    cu_state_free(&s);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    clt_log_set_level(CLT_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slabs)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
