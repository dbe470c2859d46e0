/* clt_cache: the folder that keeps what is slow to find out: compiled programs, probed facts, measured rates.
 * An entry is one file that starts with a magic, a format version, its length and its hash; it is written
 * under a temporary name and renamed, without fsync. Nothing here prints errors: without a cache a start is
 * only slower. An entry whose header or hash is wrong is deleted by clt_cache_get with a debug line, and the
 * caller makes it again. `dir` is the folder, which must exist for entries to be kept: no function makes it.
 */
#ifndef CLT_CACHE_H
#define CLT_CACHE_H

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_hash.h"

/* Must be raised when an entry of the same name changes its meaning. It is part of every device's id and of
 * the header of an entry, so all entries of all devices are then made again. A changed probe does not need
 * it: stored facts carry a hash of the probes. */
enum { CLT_CACHE_FORMAT = 4 };

/* The first of $CLTRAIN_CACHE_DIR, $XDG_CACHE_HOME/cltrain and $HOME/.cache/cltrain whose variable is set;
 * the caller frees it with clt_free. NULL if caching is off (CLTRAIN_NO_CACHE is a number other than 0) or
 * none of the variables is set. The folder may not exist yet. */
char *clt_cache_default_dir(void);

/* The contents of entry `name`: *data with a 0 after its *bytes bytes; the caller frees it with clt_free.
 * false, and both are unchanged: the entry is absent, damaged or larger than 256 MiB, or dir is NULL (no
 * cache). */
bool clt_cache_get(const char *dir, const char *name, char **data, size_t *bytes);
/* Stores an entry, or replaces it. A failure is a debug line. dir NULL: does nothing. */
void clt_cache_put(const char *dir, const char *name, const void *data, size_t bytes);

/* Deletes an entry, such as a program that the driver refuses. dir must not be NULL. */
void clt_cache_drop(const char *dir, const char *name);

/* Writes a plain file, without header and in place, not through a temporary name. false, without a message:
 * it failed, and no file is left if it was created. */
bool clt_cache_write_file(const char *path, const void *data, size_t bytes);

/* Locks the piece of work that `key` names, so that of all processes that use this folder only one does it;
 * threads of one process exclude each other too. dir must not be NULL. Waits at most `timeout` seconds.
 * Returns the lock, or -1 after the timeout or where locks do not work: the caller then continues without it.
 * unlock accepts -1. */
int clt_cache_lock(const char *dir, clt_hash128 key, double timeout);
void clt_cache_unlock(int lock);

#endif
