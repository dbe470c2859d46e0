/* Hostile JSONL: any bytes as a file, read with a large and with a small limit of a line. Every line that is
 * returned is where the reader says it is, and lines, blank lines and lines over the limit add up to the
 * file; a line that parses gives an object whose strings end where they say.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_jsonl.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_jsonl FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/data/clt_jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_must(bool holds) {
    if (!holds) abort();
}

/* The length of the line at `at`, without its end. */
static size_t fuzz_length(const uint8_t *data, size_t size, size_t at) {
    const uint8_t *end = memchr(data + at, '\n', size - at);
    return end ? (size_t)(end - data) - at : size - at;
}

static bool fuzz_blank(const uint8_t *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || !s[i]) return false;
    return true;
}

static void fuzz_parse(const clt_jsonl_line *line) {
    json_t *o, *value;
    const char *key, *text;
    size_t bytes;
    if (clt_jsonl_parse(line, &o) != CLT_OK) return;
    fuzz_must(json_is_object(o));
    fuzz_must(clt_jsonl_get_str(line, o, "no such key", &text, &bytes) == CLT_BAD_DATA);
    json_object_foreach(o, key, value) {
        clt_status st = clt_jsonl_get_str(line, o, key, &text, &bytes);
        fuzz_must((st == CLT_OK) == json_is_string(value));
        if (st == CLT_OK) fuzz_must(strlen(text) <= bytes && !text[bytes]);
    }
    json_decref(o);
}

/* Compares the reader with the lines of the data. */
static void fuzz_read(const char *path, const uint8_t *data, size_t size, size_t limit) {
    clt_jsonl *r;
    clt_jsonl_line line;
    int64_t number = 0;
    fuzz_must(clt_jsonl_open(path, limit, &r) == CLT_OK);
    for (size_t at = 0; at < size;) {
        size_t n = fuzz_length(data, size, at), begin = at;
        at += n + 1;
        number++;
        if (n <= limit && fuzz_blank(data + begin, n)) continue;
        clt_status st = clt_jsonl_next_line(r, &line);
        fuzz_must(line.number == number && line.offset == begin);
        fuzz_must(st == (n > limit ? CLT_BAD_DATA : CLT_OK));
        if (st != CLT_OK) continue;
        fuzz_must(line.bytes == n && !memcmp(line.text, data + begin, n));
        fuzz_parse(&line);
    }
    fuzz_must(clt_jsonl_next_line(r, &line) == CLT_OK && !line.text);
    fuzz_must(clt_jsonl_position(r) == size && clt_jsonl_size(r) == size);
    clt_jsonl_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int fd = memfd_create("fuzz_jsonl", MFD_CLOEXEC);
    fuzz_must(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    char *path = clt_format("/proc/self/fd/%d", fd);
    clt_error_quiet(true);
    fuzz_read(path, data, size, 1 << 20);
    fuzz_read(path, data, size, 7);
    clt_error_quiet(false);
    clt_free(path);
    close(fd);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "{}[]\",:\\u0 \n\r\t\xff"
#include "test/fuzz/replay.h"
#endif
