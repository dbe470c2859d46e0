/* Hostile files of PyTorch: any bytes as a pickle and as an archive of torch.save. What is accepted must obey
 * the rules that the headers state, which are checked here independently. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/checkpoint/clt_torch_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void check_tensor(const clt_pickle_value *v) {
    const clt_pickle_value *s = v->tensor.storage;
    uint64_t count = 1;
    require(s->kind == CLT_PICKLE_STORAGE && v->tensor.dims >= 0 && v->tensor.dims <= CLT_PICKLE_MAX_DIMS);
    for (int d = 0; d < v->tensor.dims; d++) count *= v->tensor.shape[d];
    require(count == v->tensor.count && v->tensor.offset <= s->storage.count);
    require(count <= s->storage.count - v->tensor.offset && s->storage.key->kind == CLT_PICKLE_TEXT);
}

/* Values to a depth: a list may hold itself. */
static void check(const clt_pickle_value *v, int depth, int *left) {
    if (depth > 6 || (*left)-- <= 0) return;
    if (v->kind == CLT_PICKLE_TENSOR) check_tensor(v);
    if (v->kind != CLT_PICKLE_TUPLE && v->kind != CLT_PICKLE_LIST && v->kind != CLT_PICKLE_DICT) return;
    require(v->kind != CLT_PICKLE_DICT || v->list.n % 2 == 0);
    require(v->depth <= CLT_PICKLE_MAX_DEPTH);
    for (size_t i = 0; i < v->list.n; i++) check(v->list.item[i], depth + 1, left);
    (void)clt_pickle_get(v, "param");
}

static void parse(const uint8_t *data, size_t size, unsigned flags) {
    clt_pickle *p;
    int left = 10000;
    if (clt_pickle_parse(data, size, flags, "input", &p) != CLT_OK) return;
    check(clt_pickle_root(p), 0, &left);
    clt_pickle_free(p);
}

static void read_tensor(clt_torch_file *f, const clt_pickle_value *t) {
    float some[64];
    if (!t || t->kind != CLT_PICKLE_TENSOR || clt_torch_verify(f, t) != CLT_OK) return;
    for (uint64_t at = 0; at < t->tensor.count; at += 1 + t->tensor.count / 3)
        if (clt_torch_read_f32(f, t, at, some, CLT_MIN(t->tensor.count - at, (uint64_t)64)) != CLT_OK) break;
}

static void read_file(const uint8_t *data, size_t size) {
    char path[64];
    clt_torch_file *f;
    int fd = memfd_create("fuzz", 0), left = 10000;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    if (clt_torch_open(path, CLT_PICKLE_OPAQUE_NAMES, &f) == CLT_OK) {
        check(clt_torch_root(f), 0, &left);
        read_tensor(f, clt_torch_root(f));
        read_tensor(f, clt_pickle_get(clt_torch_root(f), "param"));
        clt_torch_close(f);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_error_quiet(true);
    parse(data, size, 0);
    parse(data, size, CLT_PICKLE_OPAQUE_NAMES);
    read_file(data, size);
    clt_error_quiet(false);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "\x80\x02().]}NKJXGqhQRcubaest\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95PK\1\2\3\4"
#include "test/fuzz/replay.h"
#endif
