#include "runtime/checkpoint/clt_torch_zip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Sizes of the records without their variable parts, and their signatures. */
enum { LOCAL = 30, CENTRAL = 46, END = 22, END64 = 56, LOCATOR = 20, COMMENT_LIMIT = 65535, BLOCK = 1 << 20 };
static const uint32_t local_sign = 0x04034B50, central_sign = 0x02014B50, end_sign = 0x06054B50,
                      end64_sign = 0x06064B50, locator_sign = 0x07064B50, descriptor_sign = 0x08074B50;
static const uint32_t none32 = 0xFFFFFFFFu; /* a field whose value is in the zip64 record */

static uint64_t le(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static clt_status bad(const clt_zip *z, const char *why) {
    return clt_error(CLT_BAD_DATA, "%s: not a whole archive of torch.save: %s", clt_file_path(z->file), why);
}

/* --- the directory --- */

typedef struct {
    uint64_t offset, bytes, entries;
} directory;

/* The zip64 end record, which the locator before the plain end record points at. */
static clt_status read_end64(clt_zip *z, uint64_t end_at, directory *d) {
    unsigned char locator[LOCATOR], end[END64];
    if (end_at < LOCATOR + END64) return bad(z, "its zip64 records are missing");
    CLT_TRY(clt_file_pread(z->file, locator, LOCATOR, end_at - LOCATOR));
    if (le(locator, 4) != locator_sign) return bad(z, "its zip64 records are missing");
    const uint64_t at = le(locator + 8, 8);
    if (at > end_at - LOCATOR - END64) return bad(z, "its zip64 end record is outside the file");
    CLT_TRY(clt_file_pread(z->file, end, END64, at));
    if (le(end, 4) != end64_sign) return bad(z, "its zip64 end record is damaged");
    *d = (directory){.entries = le(end + 32, 8), .bytes = le(end + 40, 8), .offset = le(end + 48, 8)};
    return CLT_OK;
}

/* The end record is the last one of the file; torch.save writes no comment behind it. */
static clt_status read_end(clt_zip *z, uint64_t size, directory *d) {
    unsigned char end[END];
    if (size < END) return bad(z, "it has too few bytes");
    CLT_TRY(clt_file_pread(z->file, end, END, size - END));
    if (le(end, 4) != end_sign || le(end + 20, 2) != 0) return bad(z, "its end record is missing");
    *d = (directory){.entries = le(end + 10, 2), .bytes = le(end + 12, 4), .offset = le(end + 16, 4)};
    if (le(end + 4, 2) || le(end + 6, 2)) return bad(z, "it is one of several parts");
    if (d->entries == 0xFFFF || d->bytes == none32 || d->offset == none32)
        CLT_TRY(read_end64(z, size - END, d));
    if (d->offset > size || d->bytes > size - d->offset) return bad(z, "its directory is outside the file");
    if (d->bytes > CLT_ZIP_MAX_DIRECTORY || d->entries > CLT_ZIP_MAX_ENTRIES)
        return bad(z, "its directory has more than 65536 entries or 16 MiB");
    return CLT_OK;
}

/* The 64-bit values of fields that are none32, from the extra field with id 1, in this order. */
static bool take_zip64(const unsigned char *extra, size_t n, uint64_t *bytes, uint64_t *stored,
                       uint64_t *offset) {
    uint64_t *const fields[] = {bytes, stored, offset};
    while (n >= 4) {
        const size_t id = le(extra, 2), k = le(extra + 2, 2);
        if (k > n - 4) return false;
        if (id == 1) {
            size_t at = 0;
            for (size_t i = 0; i < CLT_COUNT_OF(fields); i++) {
                if (*fields[i] != none32) continue;
                if (k - at < 8) return false;
                *fields[i] = le(extra + 4 + at, 8);
                at += 8;
            }
            return true;
        }
        extra += 4 + k;
        n -= 4 + k;
    }
    return *bytes != none32 && *stored != none32 && *offset != none32;
}

/* One entry of the directory at raw[0 ... n); *used: its bytes. e->offset is that of its local header. */
static clt_status read_entry(clt_zip *z, const unsigned char *raw, size_t n, size_t *used, clt_zip_entry *e) {
    if (n < CENTRAL || le(raw, 4) != central_sign) return bad(z, "its directory is damaged");
    const size_t name = le(raw + 28, 2), extra = le(raw + 30, 2), comment = le(raw + 32, 2);
    uint64_t stored = le(raw + 20, 4);
    *used = CENTRAL + name + extra + comment;
    if (*used > n) return bad(z, "its directory is damaged");
    e->crc = (uint32_t)le(raw + 16, 4);
    e->bytes = le(raw + 24, 4);
    e->offset = le(raw + 42, 4);
    if (!take_zip64(raw + CENTRAL + name, extra, &e->bytes, &stored, &e->offset))
        return bad(z, "a size in its directory is missing");
    if (le(raw + 8, 2) & 1 || le(raw + 10, 2) != 0 || stored != e->bytes)
        return bad(z, "an entry is compressed or encrypted");
    e->name = clt_try_malloc(name + 1);
    if (!e->name) return clt_no_memory(clt_file_path(z->file), name + 1);
    memcpy(e->name, raw + CENTRAL, name);
    e->name[name] = 0;
    if (strlen(e->name) != name || !clt_path_is_safe(e->name))
        return bad(z, "the name of an entry leads out of its folder");
    return CLT_OK;
}

/* From the local header to the contents. */
static clt_status locate(clt_zip *z, uint64_t directory_at, clt_zip_entry *e) {
    unsigned char raw[LOCAL];
    if (e->offset > directory_at || directory_at - e->offset < LOCAL)
        return bad(z, "an entry is outside the file");
    CLT_TRY(clt_file_pread(z->file, raw, LOCAL, e->offset));
    if (le(raw, 4) != local_sign || le(raw + 26, 2) != strlen(e->name) || le(raw + 8, 2) != 0)
        return bad(z, "the header of an entry is damaged");
    e->offset += LOCAL + le(raw + 26, 2) + le(raw + 28, 2);
    if (e->offset > directory_at || e->bytes > directory_at - e->offset)
        return bad(z, "an entry is outside the file");
    return CLT_OK;
}

static int by_offset(const void *a, const void *b) {
    const clt_zip_entry *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const clt_zip_entry *)a)->name, ((const clt_zip_entry *)b)->name);
}

static clt_status check_entries(clt_zip *z) {
    if (z->entries > 1) qsort(z->entry, (size_t)z->entries, sizeof *z->entry, by_offset);
    for (int i = 1; i < z->entries; i++)
        if (z->entry[i].offset - z->entry[i - 1].offset < z->entry[i - 1].bytes)
            return bad(z, "two entries overlap");
    if (z->entries > 1) qsort(z->entry, (size_t)z->entries, sizeof *z->entry, by_name);
    for (int i = 1; i < z->entries; i++)
        if (!strcmp(z->entry[i - 1].name, z->entry[i].name)) return bad(z, "two entries have one name");
    return CLT_OK;
}

static clt_status read_directory(clt_zip *z, const directory *d, const unsigned char *raw) {
    size_t at = 0, used = 0;
    z->entry = clt_try_calloc((size_t)d->entries + 1, sizeof *z->entry);
    if (!z->entry) return clt_no_memory(clt_file_path(z->file), (d->entries + 1) * sizeof *z->entry);
    for (uint64_t i = 0; i < d->entries; i++, at += used) {
        clt_zip_entry *e = &z->entry[z->entries++];
        CLT_TRY(read_entry(z, raw + at, (size_t)d->bytes - at, &used, e));
        CLT_TRY(locate(z, d->offset, e));
    }
    if (at != d->bytes) return bad(z, "its directory is longer than its entries");
    return check_entries(z);
}

static clt_status open_directory(clt_zip *z) {
    uint64_t size;
    directory d = {0};
    CLT_TRY(clt_file_size(z->file, &size));
    CLT_TRY(read_end(z, size, &d));
    unsigned char *raw = clt_try_malloc((size_t)d.bytes + 1);
    if (!raw) return clt_no_memory(clt_file_path(z->file), d.bytes);
    clt_status st = clt_file_pread(z->file, raw, (size_t)d.bytes, d.offset);
    if (st == CLT_OK) st = read_directory(z, &d, raw);
    clt_free(raw);
    return st;
}

clt_status clt_zip_open(const char *path, clt_zip **out) {
    clt_zip *z = clt_calloc(1, sizeof *z);
    clt_status st = clt_file_open(path, CLT_IO_READ, &z->file);
    if (st == CLT_OK) st = open_directory(z);
    if (st != CLT_OK) {
        clt_zip_close(z);
        return st;
    }
    *out = z;
    return CLT_OK;
}

void clt_zip_close(clt_zip *z) {
    if (!z) return;
    for (int i = 0; i < z->entries; i++) clt_free(z->entry[i].name);
    clt_free(z->entry);
    clt_file_close(z->file);
    clt_free(z);
}

const clt_zip_entry *clt_zip_find(const clt_zip *z, const char *name) {
    const clt_zip_entry key = {.name = (char *)name};
    return z->entries ? bsearch(&key, z->entry, (size_t)z->entries, sizeof key, by_name) : NULL;
}

clt_status clt_zip_read(clt_zip *z, const clt_zip_entry *e, uint64_t first, void *dst, size_t bytes) {
    if (first > e->bytes || bytes > e->bytes - first)
        return clt_error(CLT_FAIL, "%s: bytes [%llu, +%zu) exceed the %llu of entry %s",
                         clt_file_path(z->file), (unsigned long long)first, bytes,
                         (unsigned long long)e->bytes, e->name);
    return clt_file_pread(z->file, dst, bytes, e->offset + first);
}

clt_status clt_zip_verify(clt_zip *z, const clt_zip_entry *e) {
    const size_t room = (size_t)CLT_MIN(e->bytes, (uint64_t)BLOCK) + 1;
    uLong crc = crc32(0, NULL, 0);
    unsigned char *block = clt_try_malloc(room);
    if (!block) return clt_no_memory(clt_file_path(z->file), room);
    clt_status st = CLT_OK;
    for (uint64_t at = 0; at < e->bytes && st == CLT_OK; at += BLOCK) {
        const size_t n = (size_t)CLT_MIN((uint64_t)BLOCK, e->bytes - at);
        st = clt_zip_read(z, e, at, block, n);
        if (st == CLT_OK) crc = crc32(crc, block, (uInt)n);
    }
    clt_free(block);
    if (st == CLT_OK && (uint32_t)crc != e->crc)
        st = clt_error(CLT_BAD_DATA, "%s is damaged: entry %s has another CRC-32 than the directory says",
                       clt_file_path(z->file), e->name);
    return st;
}

/* --- writing --- */

static void number(clt_str *s, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) clt_str_addn(s, &(char){(char)(v >> (8 * i))}, 1);
}

static clt_status append(clt_zip_writer *w, const void *data, size_t bytes) {
    CLT_TRY(clt_file_pwrite(w->file, data, bytes, w->at));
    w->at += bytes;
    return CLT_OK;
}

static clt_status append_text(clt_zip_writer *w, clt_str *s) {
    clt_status st = append(w, s->s, s->len);
    clt_str_free(s);
    return st;
}

enum {
    VERSION = 45,             /* zip64 */
    FLAGS = 1 << 3 | 1 << 11, /* CRC and sizes follow the contents; names are UTF-8 */
    DATE = 1 << 5 | 1,        /* the first day of 1980 */
    PADDING = 0x4246          /* the extra field with which torch.save aligns contents */
};

/* Without data, a local header; sizes are in the directory and behind the contents. A zip64 field announces
 * that the latter have 64 bits. */
clt_status clt_zip_begin(clt_zip_writer *w, const char *name, uint64_t bytes) {
    const size_t length = strlen(name);
    const bool large = bytes >= none32;
    const uint64_t end = w->at + LOCAL + length + (large ? 20 : 0) + 4;
    const size_t padding = (size_t)(CLT_ROUND_UP(end, (uint64_t)CLT_ZIP_ALIGNMENT) - end);
    clt_str s = {0};
    w->name = clt_strdup(name);
    w->begin = w->at;
    w->bytes = bytes;
    w->crc = (uint32_t)crc32(0, NULL, 0);
    number(&s, local_sign, 4);
    number(&s, VERSION, 2), number(&s, FLAGS, 2), number(&s, 0, 2);
    number(&s, 0, 2), number(&s, DATE, 2);
    number(&s, 0, 4);
    number(&s, large ? none32 : 0, 4), number(&s, large ? none32 : 0, 4);
    number(&s, length, 2), number(&s, (large ? 20 : 0) + 4 + padding, 2);
    clt_str_add(&s, name);
    if (large) number(&s, 1, 2), number(&s, 16, 2), number(&s, 0, 8), number(&s, 0, 8);
    number(&s, PADDING, 2), number(&s, padding, 2);
    for (size_t i = 0; i < padding; i++) clt_str_add(&s, "Z");
    CLT_TRY(append_text(w, &s));
    w->data = w->at;
    return CLT_OK;
}

clt_status clt_zip_add(clt_zip_writer *w, const void *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += BLOCK)
        w->crc = (uint32_t)crc32(w->crc, (const Bytef *)data + at, (uInt)CLT_MIN(bytes - at, (size_t)BLOCK));
    return append(w, data, bytes);
}

/* The row of the directory: what does not fit 32 bits is in a zip64 field. */
static void add_row(clt_zip_writer *w) {
    clt_str *s = &w->directory;
    const bool large = w->bytes >= none32, far = w->begin >= none32;
    const int extra = (large ? 16 : 0) + (far ? 8 : 0);
    number(s, central_sign, 4);
    number(s, VERSION, 2), number(s, VERSION, 2), number(s, FLAGS, 2), number(s, 0, 2);
    number(s, 0, 2), number(s, DATE, 2);
    number(s, w->crc, 4);
    number(s, large ? none32 : w->bytes, 4), number(s, large ? none32 : w->bytes, 4);
    number(s, strlen(w->name), 2), number(s, extra ? (uint64_t)extra + 4 : 0, 2), number(s, 0, 2);
    number(s, 0, 2), number(s, 0, 2), number(s, 0, 4);
    number(s, far ? none32 : w->begin, 4);
    clt_str_add(s, w->name);
    if (extra) number(s, 1, 2), number(s, (uint64_t)extra, 2);
    if (large) number(s, w->bytes, 8), number(s, w->bytes, 8);
    if (far) number(s, w->begin, 8);
    w->entries++;
}

clt_status clt_zip_end(clt_zip_writer *w) {
    clt_str s = {0};
    if (w->at - w->data != w->bytes)
        return clt_error(CLT_FAIL, "%s: entry %s got %llu bytes instead of %llu; this is a bug",
                         clt_file_path(w->file), w->name, (unsigned long long)(w->at - w->data),
                         (unsigned long long)w->bytes);
    number(&s, descriptor_sign, 4);
    number(&s, w->crc, 4);
    for (int i = 0; i < 2; i++) number(&s, w->bytes, w->bytes >= none32 ? 8 : 4);
    add_row(w);
    clt_free(w->name);
    w->name = NULL;
    return append_text(w, &s);
}

clt_status clt_zip_put(clt_zip_writer *w, const char *name, const void *data, size_t bytes) {
    CLT_TRY(clt_zip_begin(w, name, bytes));
    CLT_TRY(clt_zip_add(w, data, bytes));
    return clt_zip_end(w);
}

clt_status clt_zip_finish(clt_zip_writer *w) {
    const uint64_t at = w->at, bytes = w->directory.len, n = (uint64_t)w->entries;
    clt_str s = {0};
    CLT_TRY(append_text(w, &w->directory));
    number(&s, end64_sign, 4);
    number(&s, END64 - 12, 8);
    number(&s, VERSION, 2), number(&s, VERSION, 2), number(&s, 0, 4), number(&s, 0, 4);
    number(&s, n, 8), number(&s, n, 8), number(&s, bytes, 8), number(&s, at, 8);
    number(&s, locator_sign, 4);
    number(&s, 0, 4), number(&s, at + bytes, 8), number(&s, 1, 4);
    number(&s, end_sign, 4);
    number(&s, 0, 4);
    number(&s, CLT_MIN(n, (uint64_t)0xFFFF), 2), number(&s, CLT_MIN(n, (uint64_t)0xFFFF), 2);
    number(&s, CLT_MIN(bytes, (uint64_t)none32), 4), number(&s, CLT_MIN(at, (uint64_t)none32), 4);
    number(&s, 0, 2);
    return append_text(w, &s);
}

void clt_zip_writer_free(clt_zip_writer *w) {
    clt_str_free(&w->directory);
    clt_free(w->name);
    *w = (clt_zip_writer){0};
}
