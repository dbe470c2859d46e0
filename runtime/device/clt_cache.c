#include "runtime/device/clt_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"

enum { MAX_ENTRY = 256 << 20 };

typedef struct {
    char magic[8];
    uint32_t format, unused;
    uint64_t bytes;
    clt_hash128 hash;
} header;
static const char MAGIC[8] = "cltcach";

char *clt_cache_default_dir(void) {
    if (clt_env_long(CLT_ENV_NO_CACHE, 0)) return NULL;
    const char *own = clt_env(CLT_ENV_CACHE_DIR), *xdg = clt_env(CLT_ENV_XDG_CACHE_HOME),
               *home = clt_env(CLT_ENV_HOME);
    if (own) return clt_strdup(own);
    if (xdg) return clt_path_join(xdg, "cltrain");
    return home ? clt_path_join(home, ".cache/cltrain") : NULL;
}

static bool whole(const char *data, size_t bytes) {
    header h;
    if (bytes < sizeof h) return false;
    memcpy(&h, data, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.format != CLT_CACHE_FORMAT ||
        h.bytes != bytes - sizeof h)
        return false;
    clt_hash128 now = clt_hash(data + sizeof h, bytes - sizeof h);
    return now.hi == h.hash.hi && now.lo == h.hash.lo;
}

bool clt_cache_get(const char *dir, const char *name, char **data, size_t *bytes) {
    if (!dir) return false;
    char *path = clt_path_join(dir, name), *all = NULL;
    size_t n = 0;
    clt_io_info info;
    bool there = clt_io_try_stat(path, &info) == 0 && info.kind == CLT_IO_FILE && info.bytes <= MAX_ENTRY &&
                 access(path, R_OK) == 0 && clt_io_read_all(path, MAX_ENTRY, &all, &n) == CLT_OK;
    bool ok = there && whole(all, n);
    if (there && !ok) {
        clt_debug("cache entry %s is damaged or of another version and is dropped", path);
        clt_io_try_unlink(path);
    }
    if (ok) {
        *bytes = n - sizeof(header);
        memmove(all, all + sizeof(header), *bytes);
        all[*bytes] = 0;
        *data = all;
        all = NULL;
    }
    clt_free(all);
    clt_free(path);
    return ok;
}

bool clt_cache_write_file(const char *path, const void *data, size_t bytes) {
    clt_file *f = NULL;
    clt_error_quiet(true); /* a cache that cannot be written costs time, no more */
    bool made = clt_file_open(path, CLT_IO_CREATE, &f) == CLT_OK;
    bool ok = made && clt_file_pwrite(f, data, bytes, 0) == CLT_OK;
    ok &= clt_file_close(f) == CLT_OK;
    if (made && !ok) clt_io_try_unlink(path);
    clt_error_quiet(false);
    return ok;
}

void clt_cache_put(const char *dir, const char *name, const void *data, size_t bytes) {
    if (!dir) return;
    header h = {.format = CLT_CACHE_FORMAT, .bytes = bytes, .hash = clt_hash(data, bytes)};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    char *path = clt_path_join(dir, name), *tmp = clt_format("%s.tmp.%ld", path, (long)getpid());
    clt_str entry = {0};
    clt_str_addn(&entry, (const char *)&h, sizeof h);
    clt_str_addn(&entry, data, bytes);
    /* Without fsync: what a crash leaves fails its hash and is dropped. */
    const bool written = clt_cache_write_file(tmp, entry.s, entry.len);
    if (!written || clt_io_try_rename(tmp, path) != 0) {
        clt_debug("cannot write cache entry %s", path);
        if (written) clt_io_try_unlink(tmp);
    }
    clt_str_free(&entry);
    clt_free(tmp);
    clt_free(path);
}

void clt_cache_drop(const char *dir, const char *name) {
    char *path = clt_path_join(dir, name);
    clt_io_try_unlink(path);
    clt_free(path);
}

int clt_cache_lock(const char *dir, clt_hash128 key, double timeout) {
    /* One byte of one file for each key, so that the folder does not fill with lock files and different
     * programs do not wait for each other. Offsets are signed, hence the shift. */
    char *path = clt_path_join(dir, "lock");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    double start = clt_now();
    struct flock byte = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(key.lo >> 2), .l_len = 1};
    while (fd >= 0 && fcntl(fd, F_OFD_SETLK, &byte) != 0) {
        if ((errno == EAGAIN || errno == EACCES || errno == EINTR) && clt_now() - start < timeout) {
            clt_sleep(0.002);
            continue;
        }
        clt_debug("lock %s: %s; continuing without it", path, strerror(errno));
        close(fd);
        fd = -1;
    }
    clt_free(path);
    return fd;
}

void clt_cache_unlock(int lock) {
    if (lock >= 0) close(lock);
}
