#include "runtime/data/clt_mds_shards.h"

#include <string.h>

#include "runtime/data/clt_digest.h"

/* Slots for `n` decompressed shards, and one for a compressed one. */
static clt_status allocate_slots(mds_shards *s, size_t n, uint64_t largest, uint64_t largest_zip) {
    s->slots = clt_try_calloc(n, sizeof *s->slots);
    if (!s->slots) return clt_no_memory(s->dir, n * sizeof *s->slots);
    for (; s->num_slots < n; s->num_slots++) {
        char *data = clt_try_malloc(largest);
        if (!data) return clt_no_memory("the decompressed shards of a dataset", n * largest);
        s->slots[s->num_slots] = (mds_slot){data, SIZE_MAX, 0};
    }
    s->zip = clt_try_malloc(largest_zip + 1);
    return s->zip ? CLT_OK : clt_no_memory("a compressed shard", largest_zip);
}

clt_status mds_shards_init(mds_shards *s, const char *dir, mds_index x, size_t cache_bytes) {
    s->dir = dir;
    s->x = x;
    s->check_algo = -1;
    for (size_t i = 0; i < MDS_OPEN_FILES; i++) s->files[i].shard = SIZE_MAX;
    uint64_t largest = 0, largest_zip = 0;
    size_t zips = 0;
    for (size_t i = 0; i < x.n; i++) {
        if (!x.shards[i].use_zip) continue;
        zips++;
        largest = CLT_MAX(largest, x.shards[i].raw.bytes);
        largest_zip = CLT_MAX(largest_zip, x.shards[i].zip.bytes);
    }
    if (zips == 0) return CLT_OK;
    size_t slots = CLT_MIN(CLT_MAX((size_t)(cache_bytes / largest), 1), zips);
    return allocate_slots(s, slots, largest, largest_zip);
}

void mds_shards_free(mds_shards *s) {
    for (size_t i = 0; i < MDS_OPEN_FILES; i++) clt_file_close(s->files[i].file);
    for (size_t i = 0; i < s->num_slots; i++) clt_free(s->slots[i].data);
    clt_free(s->slots);
    clt_free(s->zip);
    mds_index_free(&s->x);
}

/* --- checksums --- */

static clt_status compare_hash(const mds_shards *s, const mds_file *f, const mds_hash *h, const char *have,
                               const char *note) {
    if (strcmp(have, h->hex) == 0) return CLT_OK;
    return clt_error(
        CLT_BAD_DATA,
        "%s/%s: %s checksum mismatch%s: index.json says %s, the data have %s; fetch or write it again",
        s->dir, f->name, clt_digest_name(h->algo), note, h->hex, have);
}

/* Whether this checksum is to be checked. */
static bool wanted(const mds_shards *s, const mds_file *f, const mds_hash *h, bool raw) {
    if (s->check_all || h->algo == s->check_algo) return true;
    if (!s->check_any || !raw) return false;
    for (size_t i = 0; i < f->num_hashes; i++)
        if (clt_digest_fastest((int[]){f->hashes[i].algo, h->algo}, 2) != h->algo) return false;
    return true;
}

static clt_status check_in_memory(const mds_shards *s, const mds_file *f, const void *data, bool raw,
                                  const char *note) {
    for (size_t i = 0; i < f->num_hashes; i++) {
        char hex[CLT_DIGEST_MAX_HEX];
        if (!wanted(s, f, &f->hashes[i], raw)) continue;
        CLT_TRY(clt_digest_of(f->hashes[i].algo, data, f->bytes, hex));
        CLT_TRY(compare_hash(s, f, &f->hashes[i], hex, note));
    }
    return CLT_OK;
}

static clt_status check_on_disk(mds_shards *s, size_t shard) {
    const mds_file *f = &s->x.shards[shard].raw;
    for (size_t i = 0; i < f->num_hashes; i++) {
        char hex[CLT_DIGEST_MAX_HEX];
        clt_status st = CLT_OK;
        if (!wanted(s, f, &f->hashes[i], true)) continue;
        clt_digest *d;
        CLT_TRY(clt_digest_begin(f->hashes[i].algo, &d));
        for (uint64_t at = 0; at < f->bytes && st == CLT_OK; at += MDS_BUFFER) {
            size_t n = (size_t)CLT_MIN(f->bytes - at, (uint64_t)MDS_BUFFER);
            st = mds_shard_read(s, shard, at, n, s->buffer);
            clt_digest_add(d, s->buffer, n);
        }
        clt_digest_end(d, hex);
        CLT_TRY(st);
        CLT_TRY(compare_hash(s, f, &f->hashes[i], hex, ""));
    }
    return CLT_OK;
}

/* --- the header --- */

static clt_status check_count(const mds_shards *s, const mds_shard *sh, uint32_t n) {
    if (n > (sh->raw.bytes - 8) / 4)
        return clt_error(CLT_BAD_DATA, "%s/%s: sample count %u in the shard header does not fit in the file",
                         s->dir, sh->raw.name, n);
    if (n != sh->samples)
        return clt_error(
            CLT_BAD_DATA,
            "%s/%s: the shard header says %u samples, index.json says %lld: it holds %s samples than "
            "index.json says",
            s->dir, sh->raw.name, n, (long long)sh->samples, n < sh->samples ? "fewer" : "more");
    return CLT_OK;
}

/* Offset i of n + 1, which follows `before`. */
static clt_status check_offset(const mds_shards *s, const mds_shard *sh, int64_t i, uint32_t before,
                               uint32_t offset) {
    long long size = (long long)sh->raw.bytes;
    if (i == 0 && offset < 4 + 4 * ((uint64_t)sh->samples + 1))
        return clt_error(CLT_BAD_DATA, "%s/%s: first sample offset %u lies inside the offset table", s->dir,
                         sh->raw.name, offset);
    if (i > 0 && offset < before)
        return clt_error(CLT_BAD_DATA, "%s/%s: sample offsets decrease: %u, then %u (sample %lld)", s->dir,
                         sh->raw.name, before, offset, (long long)i - 1);
    if (i == sh->samples && offset != sh->raw.bytes)
        return clt_error(CLT_BAD_DATA, "%s/%s: last offset %u is not the file size %lld", s->dir,
                         sh->raw.name, offset, size);
    if (offset > sh->raw.bytes)
        return clt_error(CLT_BAD_DATA,
                         "%s/%s: sample offset %u is past the end of the file, %lld bytes (sample %lld)",
                         s->dir, sh->raw.name, offset, size, (long long)i);
    return CLT_OK;
}

static clt_status check_header(mds_shards *s, size_t shard) {
    const mds_shard *sh = &s->x.shards[shard];
    const uint32_t *words = (const uint32_t *)(const void *)s->buffer;
    uint32_t n, before = 0;
    CLT_TRY(mds_shard_read(s, shard, 0, sizeof n, &n));
    CLT_TRY(check_count(s, sh, n));
    for (int64_t i = 0; i <= sh->samples;) {
        int64_t take = CLT_MIN(sh->samples + 1 - i, MDS_BUFFER / 4);
        CLT_TRY(mds_shard_read(s, shard, 4 + 4 * (uint64_t)i, (size_t)take * 4, s->buffer));
        for (int64_t k = 0; k < take; k++, i++) {
            CLT_TRY(check_offset(s, sh, i, before, words[k]));
            before = words[k];
        }
    }
    return CLT_OK;
}

/* A file of a shard, which a cache fetches first. */
static clt_status open_file(const mds_shards *s, size_t shard, const char *name, clt_file **out) {
    enum { TIMES = 100 };
    /* Another process that shares the cache may remove the file for its own, before it is open here. */
    for (int i = 0; s->fetch && i < TIMES; i++) {
        CLT_TRY(clt_fetch_need(s->fetch, s->fetch_first + shard));
        clt_error_quiet(true);
        const clt_status st = mds_file_open(s->dir, name, out);
        clt_error_quiet(false);
        if (st == CLT_OK) return st;
        if (clt_fetch_has(s->fetch, s->fetch_first + shard)) break; /* opening it again says what is wrong */
    }
    return mds_file_open(s->dir, name, out);
}

/* --- plain shards --- */

/* An open file that the cache has removed would keep its space on the disk. `but`: the shard in use, which
 * another process may have removed since it was opened. */
static void close_removed(mds_shards *s, size_t but) {
    for (size_t i = 0; i < MDS_OPEN_FILES; i++) {
        mds_open_file *f = &s->files[i];
        if (!f->file || f->shard == but || clt_fetch_has(s->fetch, s->fetch_first + f->shard)) continue;
        clt_file_close(f->file);
        *f = (mds_open_file){NULL, SIZE_MAX, 0};
    }
}

static clt_status use_file(mds_shards *s, size_t shard) {
    mds_open_file *oldest = &s->files[0];
    for (size_t i = 0; i < MDS_OPEN_FILES; i++) {
        mds_open_file *f = &s->files[i];
        if (f->shard == shard) {
            f->used = ++s->clock;
            return CLT_OK;
        }
        if (f->used < oldest->used) oldest = f;
    }
    clt_file *file = NULL;
    CLT_TRY(open_file(s, shard, s->x.shards[shard].raw.name, &file));
    clt_file_close(oldest->file);
    *oldest = (mds_open_file){file, shard, ++s->clock};
    if (s->fetch) close_removed(s, shard);
    return CLT_OK;
}

/* --- compressed shards --- */

static clt_status read_zip(const mds_shards *s, const mds_shard *sh, char *zip) {
    clt_file *f = NULL;
    clt_status st = sh->use_zip ? open_file(s, (size_t)(sh - s->x.shards), sh->zip.name, &f)
                                : mds_file_open(s->dir, sh->zip.name, &f);
    if (st == CLT_OK) st = clt_file_pread(f, zip, sh->zip.bytes, 0);
    clt_file_close(f);
    return st;
}

/* Reads the compressed file into `zip` and decompresses it into `raw`; the first time, verifies the checksums
 * of both. */
static clt_status load_zip(mds_shards *s, const mds_shard *sh, char *zip, char *raw) {
    CLT_TRY(read_zip(s, sh, zip));
    if (!sh->checked) CLT_TRY(check_in_memory(s, &sh->zip, zip, false, ""));
    char *file = clt_path_join(s->dir, sh->zip.name);
    clt_status st = clt_codec_decompress(sh->codec, file, zip, sh->zip.bytes, raw, sh->raw.bytes);
    clt_free(file);
    CLT_TRY(st);
    return sh->checked ? CLT_OK : check_in_memory(s, &sh->raw, raw, true, " after decompression");
}

static clt_status use_slot(mds_shards *s, size_t shard) {
    const mds_shard *sh = &s->x.shards[shard];
    mds_slot *slot = &s->slots[0];
    for (size_t i = 0; i < s->num_slots; i++) {
        if (s->slots[i].shard == shard) {
            s->slots[i].used = ++s->clock;
            return CLT_OK;
        }
        if (s->slots[i].used < slot->used) slot = &s->slots[i];
    }
    slot->shard = SIZE_MAX;
    CLT_TRY(load_zip(s, sh, s->zip, slot->data));
    *slot = (mds_slot){slot->data, shard, ++s->clock};
    return CLT_OK;
}

/* The compressed file beside the raw one that is read: its checksums, and what it decompresses to. */
static clt_status check_zip_beside(mds_shards *s, const mds_shard *sh) {
    bool there;
    CLT_TRY(mds_zip_beside(s->dir, sh, &there));
    if (!there) return CLT_OK;
    char *zip = clt_try_malloc(sh->zip.bytes + 1), *raw = clt_try_malloc(sh->raw.bytes);
    const clt_status st =
        zip && raw ? load_zip(s, sh, zip, raw)
                   : clt_no_memory("a shard and its compressed file", sh->zip.bytes + sh->raw.bytes);
    clt_free(raw);
    clt_free(zip);
    return st;
}

/* --- both --- */

static clt_status open_and_check(mds_shards *s, size_t shard) {
    mds_shard *sh = &s->x.shards[shard];
    CLT_TRY(sh->use_zip ? use_slot(s, shard) : use_file(s, shard));
    if (sh->checked) return CLT_OK;
    CLT_TRY(check_header(s, shard));
    if (!sh->use_zip) CLT_TRY(check_on_disk(s, shard));
    if (s->check_all && sh->compression && !sh->use_zip) CLT_TRY(check_zip_beside(s, sh));
    sh->checked = true;
    return CLT_OK;
}

/* A file of a cache that a loss of power or somebody has damaged is fetched again. */
static clt_status fetch_again(mds_shards *s, size_t shard) {
    for (size_t i = 0; i < MDS_OPEN_FILES; i++) {
        mds_open_file *f = &s->files[i];
        if (f->shard != shard) continue;
        clt_file_close(f->file);
        *f = (mds_open_file){NULL, SIZE_MAX, 0};
    }
    mds_shards_forget(s, shard);
    clt_fetch_drop(s->fetch, s->fetch_first + shard);
    return open_and_check(s, shard);
}

clt_status mds_shard_use(mds_shards *s, size_t shard) {
    if (!s->fetch || s->x.shards[shard].checked) return open_and_check(s, shard);
    char why[1024];
    clt_error_quiet(true);
    const clt_status st = open_and_check(s, shard);
    clt_error_quiet(false);
    if (st == CLT_OK || st == CLT_STOPPED) return st;
    snprintf(why, sizeof why, "%s", clt_last_error());
    if (st != CLT_BAD_DATA) return clt_error(st, "%s", why);
    clt_warn("%s: fetched once more", why);
    return fetch_again(s, shard);
}

void mds_shards_forget(mds_shards *s, size_t shard) {
    s->x.shards[shard].checked = false;
    for (size_t i = 0; i < s->num_slots; i++)
        if (s->slots[i].shard == shard) s->slots[i].shard = SIZE_MAX;
}

clt_status mds_shard_read(mds_shards *s, size_t shard, uint64_t offset, size_t n, void *dst) {
    if (s->x.shards[shard].use_zip) {
        for (size_t i = 0; i < s->num_slots; i++)
            if (s->slots[i].shard == shard) {
                memcpy(dst, s->slots[i].data + offset, n);
                return CLT_OK;
            }
    }
    for (size_t i = 0; i < MDS_OPEN_FILES; i++)
        if (s->files[i].shard == shard) return clt_file_pread(s->files[i].file, dst, n, offset);
    return clt_error(CLT_FAIL, "shard %zu of %s is not open", shard, s->dir);
}
