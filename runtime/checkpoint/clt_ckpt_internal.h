/* Shared by the files of runtime/checkpoint only: the manifest, the chunk codec, the write pipe, loading, and
 * group calls that accept a NULL group. */
#ifndef CLT_CKPT_INTERNAL_H
#define CLT_CKPT_INTERNAL_H

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_checkpoint.h"
#include "runtime/checkpoint/clt_ckpt_commit.h"

#define CLT_MANIFEST_LIMIT ((size_t)512 << 20)
#define CLT_CKPT_LATEST "latest"
#define CLT_CKPT_UPLOADS_AGE 3600.0 /* seconds; an upload that is older is nobody's any more */

/* --- the manifest (clt_ckpt_manifest.c) --- */

/* Where a chunk is, and the hash of its stored bytes. */
typedef struct {
    uint64_t offset, stored;
    clt_hash128 hash;
} clt_ckpt_stored;

typedef struct {
    char *role, *name;
    int dims;
    int64_t shape[CLT_MAX_DIMS];
    uint64_t count;
    size_t first_chunk;
    int chunks;
} clt_man_tensor;

typedef struct {
    uint32_t tensor, file, count; /* count: elements */
    uint64_t first;               /* element of the tensor */
    clt_ckpt_stored at;
} clt_man_chunk;

typedef struct {
    char *name;
    uint64_t bytes;
} clt_man_file;

typedef struct {
    char *model;
    char run_id[CLT_RUN_ID_BYTES];
    double saved;
    uint64_t manifest_bytes;
    clt_checkpoint_state state; /* texts belong to `root` and `model` */
    json_t *root;
    clt_ckpt_number *numbers;
    clt_man_tensor *tensor;
    size_t tensors;
    clt_man_file *file;
    size_t files;
    clt_man_chunk *chunk; /* by tensor, then first element */
    size_t chunks;
} clt_manifest;

/* Reads FOLDER/manifest.json; with `sizes`, also checks that every data file exists with its size. */
clt_status clt_manifest_load(const char *folder, bool sizes, clt_manifest **out);
/* The same checks on a text; `what` names it in messages. */
clt_status clt_manifest_parse(const char *text, size_t bytes, const char *what, clt_manifest **out);
void clt_manifest_free(clt_manifest *m);

/* The text of a manifest is its head (who, when, state), then its lists, then its hash. */
clt_status clt_manifest_head(const char *name, const char *run_id, double saved,
                             const clt_checkpoint_state *s, clt_str *out);
clt_status clt_manifest_lists(const clt_man_tensor *tensor, size_t tensors, const clt_man_file *file,
                              size_t files, const clt_man_chunk *chunk, size_t chunks, clt_str *out);
void clt_manifest_seal(clt_str *text);

/* --- the plan (clt_ckpt_plan.c) --- */

/* A chunk of the whole checkpoint; the list is the same on every rank. */
typedef struct {
    int part, entry;
    int owner; /* the rank that writes it */
    uint32_t count;
    uint64_t first;
} clt_ckpt_plan_item;

typedef struct {
    clt_ckpt_plan_item *item; /* by part, tensor and first element */
    size_t n;
    size_t mine; /* items of this rank */
} clt_ckpt_plan;

/* Parts that are on every rank are divided into even shares of elements, in the order of the plan: a chunk
 * belongs to the rank in whose share it begins. A chunk of a sharded part belongs to its owner. CLT_FAIL,
 * CLT_NO_MEMORY. The caller frees out->item. */
clt_status clt_ckpt_plan_make(const clt_ckpt_writer_params *p, clt_ckpt_plan *out);
/* Appends lists and hash to the head of a manifest. rows: those of rank 0, then those of rank 1, and so on; a
 * rank's in the order of the plan. CLT_NO_MEMORY. */
clt_status clt_ckpt_plan_manifest(const clt_ckpt_plan *plan, const clt_ckpt_writer_params *p,
                                  const clt_ckpt_commit *commit, const clt_ckpt_stored *rows, clt_str *head);

/* --- one chunk (clt_ckpt_chunk.c) --- */

/* Contexts and a buffer for one thread. */
typedef struct clt_chunk_codec clt_chunk_codec;
/* For chunks of up to `count` floats. CLT_NO_MEMORY. */
clt_status clt_chunk_codec_create(size_t count, clt_chunk_codec **out);
void clt_chunk_codec_destroy(clt_chunk_codec *c); /* NULL is allowed */
/* The buffer for the stored form of a chunk, and how long that can be. */
void *clt_chunk_codec_buffer(clt_chunk_codec *c);
size_t clt_chunk_stored_bound(size_t count);
/* Compresses `count` floats into the buffer and hashes it. */
clt_status clt_chunk_encode(clt_chunk_codec *c, const float *src, size_t count, clt_ckpt_stored *out);
/* The reverse: checks the buffer's hash, then decompresses exactly `count` floats into dst. CLT_BAD_DATA
 * without a message: *why is what is wrong. */
clt_status clt_chunk_decode(clt_chunk_codec *c, const clt_ckpt_stored *at, float *dst, size_t count,
                            const char **why);
/* The same for stored bytes at `raw`. */
clt_status clt_chunk_decode_at(clt_chunk_codec *c, const void *raw, const clt_ckpt_stored *at, float *dst,
                               size_t count, const char **why);

/* --- reading ahead (clt_ckpt_ahead.c) --- */

/* Reads, verifies and decodes the chunks of a list on threads before they are needed: up to 8 threads on
 * remote storage, each with one ranged request of up to 8 MiB at a time; up to 4, no more than there are
 * CPUs, on others. Nothing else of the files is read. Of a process one is active at a time; it takes at most
 * 16 MiB a thread and 64 MiB in all. A list is a hint: what is not in it, or not in its order, is for the
 * caller to read. */
typedef struct clt_ahead clt_ahead;
/* `list`: chunks of m, of which each is taken at most once; it is taken over. path and m are borrowed. NULL:
 * another one is active, the chunks have 8 MiB or less, or there is no memory or no thread for it. */
clt_ahead *clt_ahead_start(const char *path, const clt_manifest *m, size_t *list, size_t n);
void clt_ahead_stop(clt_ahead *a); /* NULL is allowed */

typedef enum {
    CLT_AHEAD_TAKEN,   /* *data is the chunk, valid until the next call */
    CLT_AHEAD_ABSENT,  /* not in the rest of the list; nothing else of it will be taken */
    CLT_AHEAD_UNREAD,  /* damaged, or there was no memory: reading it again tells */
    CLT_AHEAD_FAILED,  /* *st: it cannot be read, and a message said so; CLT_STOPPED: clt_io_heed_stop */
    CLT_AHEAD_UNOPENED /* the same, because its file cannot be opened */
} clt_ahead_result;
/* Waits for a chunk. Those before it in the list are dropped. */
clt_ahead_result clt_ahead_take(clt_ahead *a, size_t chunk, const float **data, clt_status *st);

/* --- the write pipe (clt_ckpt_pipe.c) --- */

/* Compresses, hashes and writes the chunks of one data file on threads, in the order of submission, then
 * makes the file durable and reads it back (without CLT_IO_CAN_WRITE_RANGES: checks its size). Everything is
 * allocated by create. */
typedef struct clt_pipe clt_pipe;
/* chunks: the most of one file; count: the most floats of one chunk. buffers: for clt_pipe_buffer.
 * CLT_NO_MEMORY. */
clt_status clt_pipe_create(int threads, int buffers, size_t chunks, size_t count, clt_pipe **out);
void clt_pipe_destroy(clt_pipe *p); /* NULL is allowed */
/* Starts a file of `chunks` chunks; rows[i] gets where chunk i went. With 0 chunks there is no file. Makes no
 * request of remote storage. */
void clt_pipe_start(clt_pipe *p, const char *path, size_t chunks, clt_ckpt_stored *rows);
/* A free buffer; waits for one. NULL: writing has failed. */
float *clt_pipe_buffer(clt_pipe *p);
/* The next chunk; `data` from clt_pipe_buffer (from_pipe) is returned to it, other memory must live until
 * finish. */
void clt_pipe_submit(clt_pipe *p, float *data, size_t count, bool from_pipe);
/* No more chunks follow, because the producer failed with `st`; or all were submitted, and those that are not
 * written yet are not needed. */
void clt_pipe_cancel(clt_pipe *p, clt_status st);
bool clt_pipe_ready(clt_pipe *p);
clt_status clt_pipe_finish(clt_pipe *p); /* waits */

/* --- loading, shared by all sources (clt_ckpt_load.c) --- */

typedef struct {
    const char *path; /* for messages */
    void *ctx;
    int (*count)(void *ctx);
    void (*at)(void *ctx, int i, clt_ckpt_tensor *out);
    int (*find)(void *ctx, const char *role, const char *name);
    clt_status (*read)(void *ctx, int i, uint64_t first, float *dst, uint64_t count);
    /* Before a load, NULL: each read that it will make, in its order. */
    void (*expect)(void *ctx, int i, uint64_t first, uint64_t count);
    void (*begin)(void *ctx); /* no more follow; NULL with expect */
    bool tied_head;           /* an extra lm_head.weight is ignored if it is a copy of the embedding */
} clt_tensor_set;
/* Names the first difference between the set's tensors of one role and the table. */
clt_status clt_tensor_set_check(const clt_tensor_set *set, const clt_slab_table *table, const char *role,
                                const clt_load_options *opt);
/* With tied_head: whether that extra head, if there is one, is a copy of the embedding. */
clt_status clt_tensor_set_check_head(const clt_tensor_set *set, const clt_slab_table *table,
                                     const clt_load_options *opt);
clt_status clt_tensor_set_load(const clt_tensor_set *set, const clt_slab_table *table,
                               const clt_ckpt_part *parts, int n, const clt_load_options *opt);

/* "[2, 3]"; the caller frees it. */
char *clt_shape_text(int dims, const int64_t *shape);

/* --- parts (clt_ckpt_load.c, clt_ckpt_hash.c) --- */

/* Adds all tensors of a whole part to a hash, as clt_state_hash describes. */
clt_status clt_ckpt_hash_role(const clt_slab_table *table, const clt_ckpt_part *part, clt_hash_state *h);

/* CLT_FAIL if a part is sharded over another number of ranks than the group has. */
clt_status clt_ckpt_check_shards(const clt_group *g, const clt_ckpt_part *parts, int n);
/* Read or write elements [first, first + count) of a tensor. Writing skips the slab's holes. */
clt_status clt_ckpt_part_read(const clt_ckpt_part *p, const clt_slab_table *t, int entry, uint64_t first,
                              float *dst, uint64_t count);
clt_status clt_ckpt_part_write(const clt_ckpt_part *p, const clt_slab_table *t, int entry, uint64_t first,
                               const float *src, uint64_t count);

/* clt_ckpt_verify of one of `shares` even parts of the chunks (clt_ckpt_reader.c). */
clt_status clt_ckpt_verify_share(clt_ckpt_reader *r, int share, int shares);

/* --- manifests that may be missing, groups that may be NULL (clt_ckpt_store.c) --- */

/* clt_manifest_load without a message; *m stays NULL when there is no usable manifest, and clt_last_error
 * says why. Only CLT_NO_MEMORY, which says nothing about the checkpoint, is an error. */
clt_status clt_ckpt_try_manifest(const char *path, clt_manifest **m);

/* Whether a folder has config.json and model.safetensors, or its index (clt_ckpt_store.c). */
bool clt_ckpt_is_hf_folder(const char *path);

static inline int clt_ckpt_rank(const clt_group *g) {
    return g ? clt_group_rank(g) : 0;
}
static inline int clt_ckpt_size(const clt_group *g) {
    return g ? clt_group_size(g) : 1;
}
static inline clt_status clt_ckpt_agree(clt_group *g, clt_status st) {
    return g ? clt_group_agree(g, st) : st;
}
static inline clt_status clt_ckpt_broadcast(clt_group *g, void *data, size_t bytes) {
    return g ? clt_group_broadcast(g, 0, data, bytes) : CLT_OK;
}
/* Rank 0's status and text, on every rank. *text (may be NULL) is owned by the caller. */
clt_status clt_ckpt_share_text(clt_group *g, clt_status st, char **text);

#endif
