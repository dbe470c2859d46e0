/* Hostile .safetensors files: any bytes through the reader. An accepted file must obey the format's rules,
 * which are checked here independently. The length field is made valid half of the time, so that the fuzzer
 * gets past it. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/checkpoint/clt_safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void check(clt_safetensors *s, uint64_t data_bytes) {
    float some[64];
    uint64_t covered = 0;
    for (int i = 0; i < clt_safetensors_count(s); i++) {
        const clt_st_tensor *t = clt_safetensors_at(s, i);
        require(t->begin == covered && t->end >= t->begin);
        require((t->end - t->begin) * 8 == t->count * (uint64_t)clt_st_dtype_bits(t->dtype));
        require(clt_safetensors_find(s, t->name) == i);
        covered = t->end;
        for (uint64_t at = 0; at < t->count; at += 1 + t->count / 3)
            if (clt_safetensors_read_f32(s, i, at, some, CLT_MIN(t->count - at, (uint64_t)64)) != CLT_OK)
                break;
    }
    require(covered == data_bytes);
    clt_safetensors_verify(s, NULL);
}

static void read_file(const uint8_t *data, size_t size, uint64_t header) {
    char path[64];
    clt_safetensors *s;
    int fd = memfd_create("fuzz", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size && pwrite(fd, &header, 8, 0) == 8);
    if (clt_safetensors_open(path, &s) == CLT_OK) {
        check(s, size - 8 - header);
        clt_safetensors_close(s);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t header;
    if (size < 8) return 0;
    clt_error_quiet(true);
    memcpy(&header, data, 8);
    read_file(data, size, header);
    const uint8_t *end = memchr(data + 8, 0, size - 8); /* JSON has no 0: the data part often begins there */
    read_file(data, size, end ? (uint64_t)(end - data - 8) : size - 8);
    clt_error_quiet(false);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "{}[]:,\"\\0123456789-.eFUB \n"
#include "test/fuzz/replay.h"
#endif
