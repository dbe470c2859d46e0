/* What the files of clt_fetch share. */
#ifndef CLT_FETCH_INTERNAL_H
#define CLT_FETCH_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/data/clt_fetch.h"

/* Bytes of one read from the remote, and of one when the line is too slow for a whole one in the time of an
 * attempt: what has come is kept by reads. The journal counts in units of the latter. */
enum { FETCH_PIECE = 8 << 20 /* by default */, FETCH_SMALL = 1 << 20 };

typedef struct {
    char *remote, *local;
    char *work;      /* LOCAL/.fetch */
    clt_file *uses;  /* with a limit: when each shard was last used, 0: it is not there */
    size_t first, n; /* its shards */
    int retries;
    double timeout;
} fetch_set;

typedef struct {
    char *name;
    uint64_t bytes;
    int algo; /* checksum to compare; -1: none */
    char *hex;
} fetch_file;

typedef enum { FETCH_IDLE, FETCH_BUSY, FETCH_FAILED } fetch_state;

typedef struct {
    fetch_set *set;
    size_t index;           /* in its set */
    fetch_file get, keep;   /* what is downloaded, and what stays; the same without decompression */
    const clt_codec *codec; /* NULL: nothing is decompressed */
    /* Under the lock of clt_fetch: */
    fetch_state state;
    bool there;        /* it was there when last looked at */
    int waiters;       /* in clt_fetch_need */
    size_t order;      /* place in the window; SIZE_MAX: not in it */
    double not_before; /* of clt_now: somebody else downloads it, or there is no room */
    double stamped;
    clt_status st; /* of FETCH_FAILED */
    char why[1024];
} fetch_item;

struct clt_fetch {
    clt_fetch_params p;
    fetch_set **sets;
    size_t n_sets;
    fetch_item **items;
    size_t n_items;
    size_t *window, n_window; /* [n_items] */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t *threads;
    int n_threads;
    char *buffers; /* p.piece bytes of each thread */
    atomic_int started;
    atomic_bool stop;
    _Atomic uint64_t received;
    int waiting;
    double waited, wait_began;
};

/* Seconds of all attempts at a download. */
double fetch_patience(int retries, double timeout);
/* Whether storage can be a local folder; CLT_BAD_CONFIG. */
clt_status fetch_require_cache(const char *local);
/* Whether the folder has the file, with its whole size. */
bool fetch_has_file(const char *dir, const mds_file *m);

/* Downloads the item's file, with `buffer` of p.piece bytes. *later: another process does, or there is no
 * room in the cache now; ask again. `needed`: somebody waits for it. */
clt_status fetch_bring(clt_fetch *f, fetch_item *it, bool needed, char *buffer, bool *later);
/* The file's path in the local folder, and whether it is there, with its whole size. */
char *fetch_path(const fetch_item *it);
bool fetch_is_there(const fetch_item *it);

/* Makes room for the item and counts it. *full: nothing may be removed now. */
clt_status fetch_make_room(clt_fetch *f, fetch_item *it, bool needed, bool *full);
/* The table of a new set. */
clt_status fetch_open_uses(clt_fetch *f, fetch_set *s);
/* The item is used now; or, with 0, is not there. Nothing without a limit. */
void fetch_stamp(const fetch_item *it, uint64_t when);
uint64_t fetch_clock(void);
/* A lock of the cache; waits. CLT_STOPPED. */
clt_status fetch_lock(clt_fetch *f, const char *folder, const char *name, clt_io_lock **out);

#endif
