/* The fuzz target of the MDS reader (test/fuzz/fuzz_mds.c) over the golden sets, valid and damaged, and
 * thousands of mutations of them, which are the same in every run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "runtime/base/clt_philox.h"
#include "test/fuzz/fuzz_mds.c"

enum { MAX_INPUT = 1 << 16, MUTATIONS = 40 };

typedef struct {
    uint8_t data[MAX_INPUT];
    size_t size;
} input;

static void append(input *in, const void *data, size_t n) {
    n = CLT_MIN(n, sizeof in->data - in->size);
    memcpy(in->data + in->size, data, n);
    in->size += n;
}

/* Changes some bytes, removes a piece or doubles one, as a function of (input number, round). */
static void mutate(input *in, uint32_t number, uint32_t round) {
    uint32_t r[4];
    for (uint32_t k = 0; k <= round % 4; k++) {
        clt_philox4x32((const uint32_t[4]){number, round, k, 0}, (const uint32_t[2]){17, 4}, r);
        if (in->size < 16) return;
        /* Half of the changes hit the beginning, where counts and offsets are. */
        size_t at = 3 + r[0] % ((r[1] & 1) ? CLT_MIN(in->size - 3, 64) : in->size - 3);
        if (r[2] % 8 == 0) {
            size_t n = r[3] % CLT_MIN(in->size - at, 40);
            memmove(in->data + at, in->data + at + n, in->size - at - n);
            in->size -= n;
        } else if (r[2] % 8 == 1) {
            in->data[at] ^= (uint8_t)(1u << r[3] % 8);
        } else {
            static const uint8_t telling[] = {0, 1, 4, 0x7f, 0x80, 0xff, '"', '{'};
            in->data[at] = r[2] % 8 < 5 ? telling[r[3] % 8] : (uint8_t)r[3];
        }
    }
}

static size_t run_input(const input *seed, uint32_t number) {
    static input in;
    LLVMFuzzerTestOneInput(seed->data, seed->size);
    for (uint32_t round = 0; round < MUTATIONS; round++) {
        in = *seed;
        mutate(&in, number, round);
        /* Of the exact size, so that ASan sees a read past its end. */
        uint8_t *copy = clt_memdup(in.data, in.size);
        LLVMFuzzerTestOneInput(copy, in.size);
        clt_free(copy);
    }
    return MUTATIONS + 1;
}

/* The byte that stands for the compression of a file. */
static uint8_t compression_of(const char *name) {
    static const char *const extensions[] = {".zstd", ".gz", ".bz2", ".br", ".snappy"};
    for (uint8_t k = 0; k < CLT_COUNT_OF(extensions); k++)
        if (strstr(name, extensions[k])) return (uint8_t)(41 + 2 * k);
    return 0;
}

/* index.json with one shard, and each shard alone under every column kind. */
static size_t run_folder(const char *folder, uint32_t *number) {
    static input in;
    clt_strv names = {0};
    size_t runs = 0, n = 0, k;
    char *index = NULL, *data, *path = clt_path_join(folder, "index.json");
    if (clt_io_is_file(path)) assert_int_equal(clt_io_read_all(path, 1 << 20, &index, &n), CLT_OK);
    clt_free(path);
    assert_int_equal(clt_io_list(folder, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++) {
        path = clt_path_join(folder, names.v[i]);
        if (clt_io_is_file(path) && strncmp(names.v[i], "shard.", 6) == 0) {
            assert_int_equal(clt_io_read_all(path, 1 << 20, &data, &k), CLT_OK);
            uint8_t head[3] = {0, (uint8_t)n, (uint8_t)(n >> 8)};
            in.size = 0;
            append(&in, head, 3);
            append(&in, index ? index : "", n);
            append(&in, data, k);
            runs += run_input(&in, (*number)++);
            uint8_t compression = compression_of(names.v[i]);
            for (uint8_t column = 0; column < 6; column++) {
                in.size = 0;
                append(&in, (const uint8_t[3]){1, column, compression}, 3);
                append(&in, data, k);
                runs += run_input(&in, (*number)++);
            }
            clt_free(data);
        }
        clt_free(path);
    }
    clt_strv_free(&names);
    clt_free(index);
    return runs;
}

static void test_golden_and_mutations(void **state) {
    (void)state;
    static const char *const parents[] = {"test/golden/mds", "test/golden/mds/corrupt"};
    uint32_t number = 0;
    size_t runs = 0;
    for (size_t p = 0; p < CLT_COUNT_OF(parents); p++) {
        clt_strv names = {0};
        assert_int_equal(clt_io_list(parents[p], &names), CLT_OK);
        for (size_t i = 0; i < names.n; i++) {
            char *folder = clt_path_join(parents[p], names.v[i]);
            if (clt_io_is_dir(folder)) runs += run_folder(folder, &number);
            clt_free(folder);
        }
        clt_strv_free(&names);
    }
    assert_true(runs > 30000);
    print_message("%zu inputs\n", runs);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_and_mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
