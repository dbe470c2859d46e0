/* clt_torch_zip: the zip archives of torch.save: entries that are stored without compression. The reader
 * checks the whole directory before an entry is available: signatures, sizes, names, that every entry lies
 * inside the file and none overlaps another. The writer writes from the beginning to the end, so that any
 * storage can hold the file. */
#ifndef CLT_TORCH_ZIP_H
#define CLT_TORCH_ZIP_H

#include "runtime/base/clt_io.h"

enum { CLT_ZIP_MAX_ENTRIES = 1 << 16, CLT_ZIP_MAX_DIRECTORY = 16 << 20, CLT_ZIP_ALIGNMENT = 64 };

typedef struct {
    char *name;
    uint64_t offset, bytes; /* of its contents in the file */
    uint32_t crc;           /* CRC-32 of the contents */
} clt_zip_entry;

typedef struct {
    clt_file *file;
    clt_zip_entry *entry; /* sorted by name */
    int entries;
} clt_zip;

/* Opens an archive. CLT_BAD_DATA: it is none, it is damaged, or it has entries that torch.save does not
 * write (compressed or encrypted ones, names that leave their folder). */
clt_status clt_zip_open(const char *path, clt_zip **out);
void clt_zip_close(clt_zip *z);                                        /* NULL is allowed */
const clt_zip_entry *clt_zip_find(const clt_zip *z, const char *name); /* NULL: absent */
/* Bytes [first, first + bytes) of an entry. Ranges outside it are CLT_FAIL. */
clt_status clt_zip_read(clt_zip *z, const clt_zip_entry *e, uint64_t first, void *dst, size_t bytes);
/* Reads all of an entry and compares its CRC-32: CLT_BAD_DATA. */
clt_status clt_zip_verify(clt_zip *z, const clt_zip_entry *e);

/* --- writing --- */

typedef struct {
    clt_file *file;
    uint64_t at;
    clt_str directory;
    int entries;
    /* the entry that is being written */
    char *name;
    uint64_t begin, data, bytes;
    uint32_t crc;
} clt_zip_writer;

/* An entry of exactly `bytes` bytes, whose contents begin at a multiple of CLT_ZIP_ALIGNMENT. The file is
 * open for writing and borrowed; start from {.file = f}. Contents are added in order. */
clt_status clt_zip_begin(clt_zip_writer *w, const char *name, uint64_t bytes);
clt_status clt_zip_add(clt_zip_writer *w, const void *data, size_t bytes);
clt_status clt_zip_end(clt_zip_writer *w);
/* begin, add and end. */
clt_status clt_zip_put(clt_zip_writer *w, const char *name, const void *data, size_t bytes);
/* Writes the directory. */
clt_status clt_zip_finish(clt_zip_writer *w);
void clt_zip_writer_free(clt_zip_writer *w);

#endif
