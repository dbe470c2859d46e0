/* clt_cache: the folder in which devices keep what is slow to find out: compiled programs, probed facts,
 * measured rates. An entry is one file with a magic, a format version, its length and its hash in front; it
 * is written under a temporary name and renamed. Everything here is quiet: a cache that cannot be read or
 * written only makes a start slower, and an entry that does not prove itself whole is dropped with a debug
 * line and made again. */
#ifndef CLT_CACHE_H
#define CLT_CACHE_H

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_hash.h"

/* Bumped when what is stored changes its meaning: another field in the probed facts does that, too. */
enum { CLT_CACHE_FORMAT = 4 };

/* $CLTRAIN_CACHE_DIR, $XDG_CACHE_HOME/cltrain or ~/.cache/cltrain, malloc'ed; NULL when caching is off
 * (CLTRAIN_NO_CACHE) or there is no such place. The folder may not exist yet. */
char *clt_cache_default_dir(void);

/* The contents of entry `name`, malloc'ed with a 0 after the data; false if there is no whole one. dir may be
 * NULL. */
bool clt_cache_get(const char *dir, const char *name, char **data, size_t *bytes);
void clt_cache_put(const char *dir, const char *name, const void *data, size_t bytes);

/* Removes an entry that is whole but of no use. */
void clt_cache_drop(const char *dir, const char *name);

/* Writes a file in one go, without a message: false, and no file, if that fails. */
bool clt_cache_write_file(const char *path, const void *data, size_t bytes);

/* Holds other processes of this host off the piece of work that `key` names, for at most `timeout` seconds:
 * then, or when locks do not work here, it returns -1 and everybody works. */
int clt_cache_lock(const char *dir, clt_hash128 key, double timeout);
void clt_cache_unlock(int lock);

#endif
