/* clt_fetch: a cache of remote MDS data sets in local folders. index.json comes first, shards when they are
 * needed and ahead of that, on a few threads. The processes of a host may share a folder: a lock file for
 * each shard sees to it that one of them downloads it, and the end of a process frees its locks. A download
 * that was cut off goes on where it ended. Size and checksum are compared before a shard gets its name.
 *
 * A download is attempted 1 + retries times, each time for at most `timeout` seconds. A shard that a storage
 * which cannot be reached does not deliver in that time is CLT_AGAIN: the same run may succeed later. What
 * somebody has to mend is CLT_IO (the remote lacks the file or refuses it) or CLT_BAD_DATA (it has other
 * bytes than index.json says).
 *
 * LOCAL/index.json and LOCAL/SHARD are what a reader of the data set expects; LOCAL/.fetch has the locks and
 * unfinished downloads. LOCAL must be on storage with folders, names that change, ranges and locks; the
 * remote is any path or URL of clt_io.
 *
 * One clt_fetch serves all data sets of a loader: they share its threads and the limit of the cache. A
 * shard's number counts through the data sets. Functions may be called from any thread unless they say
 * otherwise. */
#ifndef CLT_FETCH_H
#define CLT_FETCH_H

#include "runtime/base/clt_base.h"
#include "runtime/data/clt_mds_index.h"

typedef struct clt_fetch clt_fetch;

enum { CLT_FETCH_TIMEOUT = 60, CLT_FETCH_RETRIES = 2 }; /* defaults of StreamingDataset */

typedef struct {
    uint64_t cache_limit; /* bytes of all shards in the local folders together; 0: no limit */
    int threads;          /* downloads at a time; 0: 4 */
    size_t piece; /* bytes of a read, a multiple of 1 MiB, of which each thread has a buffer; 0: 8 MiB.
                   * Large ones cost a store less, and what was cut off goes on after a whole one */
} clt_fetch_params;

/* One data set; everything is copied. */
typedef struct {
    const char *remote, *local;
    const char *validate_hash; /* of the downloaded file, as in clt_mds_params */
    bool keep_zip;             /* compressed shards stay compressed; false: they are stored decompressed */
    int retries;               /* further attempts after a failed download */
    double timeout;            /* seconds of an attempt; 0: CLT_FETCH_TIMEOUT */
} clt_fetch_set;

/* Starts the threads. CLT_FAIL, CLT_NO_MEMORY. */
clt_status clt_fetch_create(const clt_fetch_params *p, clt_fetch **out);
/* Cuts running downloads off. NULL is allowed. */
void clt_fetch_close(clt_fetch *f);

/* Puts the remote's index.json into the local folder, which is created. If there is one already, compares the
 * two: CLT_BAD_DATA, with the first shard that differs, if the remote data set was replaced. If the remote
 * cannot be read then, a local folder that has all its shards is used as it is, with a line that says so, and
 * an incomplete one is CLT_AGAIN or CLT_IO as above. Heeds a request to stop if the calling thread does
 * (clt_io_heed_stop). CLT_BAD_DATA also: it is no JSON; CLT_BAD_CONFIG: the local folder cannot serve as a
 * cache; CLT_IO: there is no local one and the remote cannot be read; CLT_STOPPED. */
clt_status clt_fetch_index(const clt_fetch_set *s);
/* Adds the data set of this index and decides for every shard which file will be read (x->shards[].use_zip):
 * what the local folder has already, else what keep_zip says. *first is the number of its first shard.
 * CLT_BAD_DATA: a name that cannot be stored; CLT_BAD_CONFIG: the cache limit has no room for a shard. */
clt_status clt_fetch_add(clt_fetch *f, const clt_fetch_set *s, mds_index *x, size_t *first);

/* The shards that will be needed next, the first one first, instead of those announced before; a shard may
 * occur several times. They are downloaded in this order and not removed for the limit's sake. */
void clt_fetch_announce(clt_fetch *f, const size_t *shards, size_t n);
/* Waits until the shard's file is in the local folder, at most as long as all attempts may take, whoever
 * makes them: so ranks that need one shard give up together. Reports the shard, its remote, the time and the
 * reason: CLT_AGAIN, CLT_IO, CLT_BAD_DATA as above, or it cannot be decompressed; CLT_STOPPED:
 * clt_fetch_stop, or a request to stop that the thread heeds. */
clt_status clt_fetch_need(clt_fetch *f, size_t shard);
/* Removes the shard's file, which is damaged, so that clt_fetch_need brings it again. */
void clt_fetch_drop(clt_fetch *f, size_t shard);
/* Whether the shard's file is in the local folder. */
bool clt_fetch_has(clt_fetch *f, size_t shard);
/* Seconds in which a thread waited in clt_fetch_need, up to now. */
double clt_fetch_waited(clt_fetch *f);
/* Bytes received from remotes so far. */
uint64_t clt_fetch_received(clt_fetch *f);
/* Ends all downloads and waits, for good; returns at once. */
void clt_fetch_stop(clt_fetch *f);

/* The folder for a remote data set without a local one: below TMPDIR, named from a hash of `remote`, and only
 * this user's. To be freed with clt_free. CLT_IO. */
clt_status clt_fetch_default_local(const char *remote, char **out);

#endif
