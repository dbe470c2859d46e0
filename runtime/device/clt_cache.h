/* clt_cache: the folder that keeps what is slow to find out: compiled programs, probed facts, measured rates.
 * An entry is one file that starts with a magic, a format version, its length and its hash; it is written
 * under a temporary name and renamed. Nothing here prints errors: without a cache a start is only slower, and
 * an entry that fails its hash is dropped with a debug line and made again. */
#ifndef CLT_CACHE_H
#define CLT_CACHE_H

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_hash.h"

/* Raised when an entry of the same name and key changes its meaning. It is part of every device's id, so all
 * entries of all devices are made again. Probed facts do not need it: they carry a hash of what was asked. */
enum { CLT_CACHE_FORMAT = 4 };

/* $CLTRAIN_CACHE_DIR, $XDG_CACHE_HOME/cltrain or ~/.cache/cltrain, malloc'ed; NULL if caching is off
 * (CLTRAIN_NO_CACHE) or none of the three is set. The folder may not exist yet. */
char *clt_cache_default_dir(void);

/* The contents of entry `name`, malloc'ed with a 0 after the data; false if there is none or it is damaged.
 * dir may be NULL (no cache), in all functions. */
bool clt_cache_get(const char *dir, const char *name, char **data, size_t *bytes);
void clt_cache_put(const char *dir, const char *name, const void *data, size_t bytes);

/* Removes an entry that is whole but that the driver refuses. */
void clt_cache_drop(const char *dir, const char *name);

/* Writes a file without a message: false, and no file is left, if that fails. */
bool clt_cache_write_file(const char *path, const void *data, size_t bytes);

/* Locks the piece of work that `key` names against other processes of this host. Waits at most `timeout`
 * seconds; after that, or where locks do not work, it returns -1 and the caller continues without the lock.
 */
int clt_cache_lock(const char *dir, clt_hash128 key, double timeout);
void clt_cache_unlock(int lock);

#endif
