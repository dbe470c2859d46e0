#include "runtime/train/sink/clt_event_file.h"

#include <string.h>

/* Tags of protocol buffers: the field number, and how the value is written. */
enum { VARINT = 0, BITS64 = 1, BYTES = 2, BITS32 = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SESSION_STATUS = 1, SESSION_START = 1, SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };

uint32_t clt_crc32c(const void *data, size_t bytes) {
    static const uint32_t polynomial = 0x82f63b78; /* bits reversed */
    const uint8_t *p = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    return ~crc;
}

static void add_little_endian(clt_str *b, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) {
        const char byte = (char)(v >> 8 * i & 0xff);
        clt_str_addn(b, &byte, 1);
    }
}

static void add_varint(clt_str *b, uint64_t v) {
    for (; v > 0x7f; v >>= 7) add_little_endian(b, (v & 0x7f) | 0x80, 1);
    add_little_endian(b, v, 1);
}

static void add_tag(clt_str *b, int field, int form) {
    add_varint(b, (uint64_t)(field << 3 | form));
}

static void add_bytes(clt_str *b, int field, const char *data, size_t n) {
    add_tag(b, field, BYTES);
    add_varint(b, n);
    clt_str_addn(b, data, n);
}

static void add_checksum(clt_str *b, const char *data, size_t n) {
    static const uint32_t delta = 0xa282ead8; /* TFRecord masks checksums, because files may contain files */
    const uint32_t crc = clt_crc32c(data, n);
    add_little_endian(b, (crc >> 15 | crc << 17) + delta, 4);
}

static void begin(clt_str *event, double wall_time, int64_t step) {
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    add_tag(event, EVENT_WALL_TIME, BITS64);
    add_little_endian(event, bits, 8);
    if (step == 0) return; /* the default is not written */
    add_tag(event, EVENT_STEP, VARINT);
    add_varint(event, (uint64_t)step);
}

/* Appends the record and frees the event. */
static void add_record(clt_str *out, clt_str *event) {
    clt_str length = {0};
    add_little_endian(&length, event->len, 8);
    clt_str_addn(out, length.s, length.len);
    add_checksum(out, length.s, length.len);
    clt_str_addn(out, event->s, event->len);
    add_checksum(out, event->s, event->len);
    clt_str_free(&length);
    clt_str_free(event);
}

void clt_event_add_version(clt_str *out, double wall_time) {
    static const char version[] = "brain.Event:2";
    clt_str event = {0};
    begin(&event, wall_time, 0);
    add_bytes(&event, EVENT_VERSION, version, sizeof version - 1);
    add_record(out, &event);
}

void clt_event_add_start(clt_str *out, double wall_time, int64_t step) {
    const char session[] = {SESSION_STATUS << 3 | VARINT, SESSION_START};
    clt_str event = {0};
    begin(&event, wall_time, step);
    add_bytes(&event, EVENT_SESSION, session, sizeof session);
    add_record(out, &event);
}

void clt_event_add_scalars(clt_str *out, double wall_time, int64_t step, const clt_metrics *m) {
    clt_str event = {0}, summary = {0};
    for (size_t i = 0; i < m->n; i++) {
        const float value = (float)m->v[i].value;
        uint32_t bits;
        clt_str one = {0};
        memcpy(&bits, &value, sizeof bits);
        add_bytes(&one, VALUE_TAG, m->v[i].name, strlen(m->v[i].name));
        add_tag(&one, VALUE_SIMPLE, BITS32);
        add_little_endian(&one, bits, 4);
        add_bytes(&summary, SUMMARY_VALUE, one.s, one.len);
        clt_str_free(&one);
    }
    begin(&event, wall_time, step);
    if (m->n > 0) add_bytes(&event, EVENT_SUMMARY, summary.s, summary.len);
    clt_str_free(&summary);
    add_record(out, &event);
}
