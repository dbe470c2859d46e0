/* clt_checkpoint: checkpoints that belong to no device and no rank count (docs/checkpoint-format.md).
 *
 * A checkpoint is a folder (a path or a URL): data files with compressed chunks of tensors in global
 * coordinates, and manifest.json, written last, which lists tensors, chunks with their hashes, and the state
 * of the run as numbers. Saving is a commit (clt_ckpt_commit.h): everything is written, made durable and read
 * back before NAME becomes the new checkpoint in one step. On a file system the files are written below
 * NAME.tmp.RUNID, which is renamed to NAME; on an object store, manifest.json is written last.
 *
 *     clt_ckpt_writer_params p = clt_ckpt_writer_params_default();
 *     p.group = group, p.folder = "runs/a", p.run_id = id, p.table = &table;
 *     p.parts = (clt_ckpt_part[]){{"weight", weights}, {"exp_avg", m}, {"exp_avg_sq", v}}, p.part_count = 3;
 *     CLT_TRY(clt_ckpt_writer_create(&p, &writer));
 *     ...
 *     clt_status st = clt_ckpt_save(writer, "ep0-ba100", &state); // CLT_IO: not saved, training may continue
 *
 * Functions that take a group are collective: every rank calls them in the same order and gets the same
 * status. A NULL group means one rank. Functions whose memory follows from a file or a state also return
 * CLT_NO_MEMORY. Hashes find damage, not tampering. */
#ifndef CLT_CHECKPOINT_H
#define CLT_CHECKPOINT_H

#include "collectives/clt_group.h"
#include "runtime/device/clt_shards.h"
#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"

enum {
    CLT_CKPT_VERSION = 1, /* of the format; chunks have CLT_CKPT_CHUNK elements (clt_shards.h) */
    CLT_RUN_ID_BYTES = 17 /* 16 hex digits and a 0 */
};

/* --- what is saved --- */

/* A named number of the optimizer or the loss scaler ("loss_scale", "good_steps", ...). */
typedef struct {
    const char *name;
    double value;
} clt_ckpt_number;

/* The state of a run other than its tensors. Texts may be NULL. When saving, everything is borrowed until the
 * call returns; when reading, everything belongs to the reader. */
typedef struct {
    /* timestamp: what is completed */
    int64_t epoch, batch, sample, token;
    int64_t batch_in_epoch, sample_in_epoch, token_in_epoch;
    double train_seconds; /* time spent in training */
    /* the next sample to read, in global order */
    int64_t data_epoch, data_sample_in_epoch, num_canonical_nodes, shuffle_seed, initial_physical_nodes;
    int64_t seed;
    int64_t lanes;
    int64_t optimizer_step;
    double loss;           /* of the last finished step; NaN: unknown */
    const char *optimizer; /* "decoupled_adamw" */
    const char *run_name;
    const char *model;  /* JSON object of clt_model_config_to_json, from which the model can be built */
    const char *config; /* the merged configuration, as text */
    /* what wrote it */
    int64_t ranks;
    const char *device, *driver, *version, *variants;
    const char *numerics; /* "exact fp32"; NULL in checkpoints of the first versions */
    const clt_ckpt_number *numbers;
    int number_count;
} clt_checkpoint_state;

/* All numbers 0, loss NaN, texts NULL, version this program's. */
clt_checkpoint_state clt_checkpoint_state_default(void);

/* The tensors of one role ("weight", "exp_avg", "exp_avg_sq"), in the layout of a table. Exactly one of slab,
 * host, read and write is set; host is the whole slab in memory (table->total elements); read gives elements
 * of one tensor and serves saving and hashing only; write takes elements of one tensor and serves loading
 * only. A part is either whole and the same on every rank, or sharded: then each rank saves and hashes what
 * it owns, and its slab may have holes elsewhere. A checkpoint has no trace of shards: any number of ranks
 * reads it, into slabs with or without holes. */
typedef clt_status (*clt_ckpt_read_fn)(void *ctx, int entry, uint64_t first, float *dst, uint64_t count);
typedef clt_status (*clt_ckpt_write_fn)(void *ctx, int entry, uint64_t first, const float *src,
                                        uint64_t count);
typedef struct {
    const char *role;
    clt_slab *slab;
    float *host;
    clt_ckpt_read_fn read;
    clt_ckpt_write_fn write;
    void *ctx;
    const clt_shards *shards; /* who owns what, for as many ranks as the group has; NULL: the part is whole.
                               * Borrowed */
} clt_ckpt_part;

/* --- writing --- */

typedef struct clt_ckpt_writer clt_ckpt_writer;
typedef struct clt_run_lock clt_run_lock;

typedef struct {
    clt_group *group;
    const char *folder;          /* save_folder, a path or a URL; created when absent */
    const char *run_id;          /* from clt_run_id */
    const clt_slab_table *table; /* borrowed */
    const clt_ckpt_part *parts;  /* copied; the slabs are borrowed */
    int part_count;
    int64_t keep;       /* newest checkpoints to keep, negative: all; never fewer than two are kept */
    bool overwrite;     /* save_overwrite: a checkpoint of the same name is swapped out, then deleted */
    const char *latest; /* name of the hint file, NULL: "latest" */
    int threads;        /* that compress, hash and write; 0: the calling thread; negative: by the machine */
    bool snapshot;      /* begin() copies this rank's share to host memory and returns; otherwise it returns
                         * when the share is compressed, with bounded memory */
    bool single;        /* one checkpoint in a folder that no run owns (import): no hint file, no pruning, and
                         * leftovers of other runs stay */
    const clt_run_lock *lock; /* of the folder, borrowed; a save after it was lost fails. NULL: not checked */
} clt_ckpt_writer_params;
clt_ckpt_writer_params clt_ckpt_writer_params_default(void); /* keep -1, threads -1 */

/* Creates the folder, removes what killed saves left, and proves that the folder can be written to: CLT_IO
 * otherwise; CLT_BAD_CONFIG: its storage cannot hold checkpoints. Whole parts are divided among the ranks in
 * even shares; chunks of sharded parts are written by their owners. Buffers are allocated once: a save
 * allocates nothing that stays. */
clt_status clt_ckpt_writer_create(const clt_ckpt_writer_params *p, clt_ckpt_writer **out);
void clt_ckpt_writer_destroy(clt_ckpt_writer *w); /* NULL is allowed; a save in progress is discarded */

/* Begins a save. `name` is one path component. When it returns the slabs may change, and so may `state`.
 * Failures of one rank's device or disk are kept for finish; only what every rank knows fails here, and then
 * finish must not be called. With `snapshot`, begin makes no request of remote storage: what has the name is
 * examined while the copy is written, and finish refuses. */
clt_status clt_ckpt_save_begin(clt_ckpt_writer *w, const char *name, const clt_checkpoint_state *state);
/* Not collective: whether finish, or next, would not wait for this rank. */
bool clt_ckpt_save_ready(clt_ckpt_writer *w);
/* Once every rank is ready: begins what is next, in the background. true: the save has ended, and finish does
 * not wait. Otherwise training continues until every rank is ready again. */
bool clt_ckpt_save_next(clt_ckpt_writer *w);
/* Waits, commits, verifies, prunes. On remote storage, or after clt_ckpt_save_next, the hint file is written
 * and old checkpoints are removed by a thread, which the next begin and destroy wait for. CLT_OK: the
 * checkpoint is durable. Otherwise what was written is removed, one warning says so, and earlier checkpoints
 * are untouched. A checkpoint of this name that this run has already saved for this batch is CLT_OK; another
 * one of this name is CLT_IO unless overwrite is set. */
clt_status clt_ckpt_save_finish(clt_ckpt_writer *w);
/* begin and finish; waits for that thread, too. */
clt_status clt_ckpt_save(clt_ckpt_writer *w, const char *name, const clt_checkpoint_state *state);

/* --- copying (clt_ckpt_copy.c) --- */

typedef struct {
    const char *folder;       /* to which, a path or a URL; it exists */
    const char *run_id;       /* of the run that copies */
    unsigned number;          /* no other copy of this run into the folder has it */
    const char *latest;       /* name of the hint file */
    int64_t keep;             /* as in clt_ckpt_writer_params */
    const clt_run_lock *lock; /* of `folder`, borrowed */
} clt_ckpt_copy_params;

/* Copies the checkpoint `from` to FOLDER under its name, piece by piece, and commits it as a save is
 * committed: it is there whole or not at all. Then writes the hint and prunes. The manifest is the same but
 * for the names of the data files. All files of `from` are opened first: on a file system it may be removed
 * from then on. *copied false: this checkpoint is there already. A checkpoint of this name that is another
 * one is replaced. CLT_IO, CLT_BAD_DATA: nothing changed. Not collective. For requests to stop see
 * clt_io_heed_flag. */
clt_status clt_ckpt_copy(const char *from, const clt_ckpt_copy_params *p, bool *copied);

/* Makes a folder ready for copies of a run that resumes at `batch`: creates it, removes what killed copies
 * left, gives valid later checkpoints a name that is never read (clt_ckpt_supersede). With the folder's lock
 * held. */
clt_status clt_ckpt_copy_prepare(const clt_ckpt_copy_params *p, int64_t batch);

/* --- a folder of checkpoints --- */

typedef struct {
    char *name, *path;
    bool valid;                          /* the manifest verifies and every data file has its size */
    char *why;                           /* why it is not valid, else NULL */
    int64_t epoch, batch, sample, token; /* a model of images counts a sample as a token */
    double loss;                         /* NaN: unknown */
    double saved;                        /* seconds since 1970; 0: unknown */
    uint64_t bytes;                      /* on disk */
    char run_id[CLT_RUN_ID_BYTES];
} clt_ckpt_info;

/* All checkpoints of a folder, newest first (by batch; invalid ones last), without temporary and superseded
 * ones. Prints nothing about invalid ones. */
clt_status clt_ckpt_scan(const char *folder, clt_ckpt_info **list, int *n);
void clt_ckpt_scan_free(clt_ckpt_info *list, int n);

/* The newest checkpoint of `folder` of which every chunk verifies (each rank reads a share of them), the same
 * on every rank. *path is NULL when the folder has no checkpoint; CLT_BAD_DATA: it has some and none is
 * valid. A warning names each that is skipped, with the reason. The caller frees *path. */
clt_status clt_ckpt_find_newest(clt_group *group, const char *folder, char **path);

/* What `path` (load_path) means: itself when it is a checkpoint, an HF folder or a .safetensors file; the
 * newest valid checkpoint (manifest and sizes) when it is a folder of checkpoints; what a hint file names, or
 * the newest in its folder when that no longer exists (with a warning). Missing: CLT_IO. Nothing usable in
 * it: CLT_BAD_DATA. Rank 0 decides. The caller frees *resolved. */
clt_status clt_ckpt_resolve(clt_group *group, const char *path, char **resolved);

/* Before a run resumes at `batch` in this folder: later and invalid checkpoints are renamed to
 * NAME.superseded.RUNID, so that nothing is overwritten. One line names each. */
clt_status clt_ckpt_supersede(clt_group *group, const char *folder, int64_t batch, const char *run_id);

/* Completes what a crash interrupted: on a file system, an overwriting save between two renames. Call it with
 * the folder's lock held, before anything else in the folder. */
clt_status clt_ckpt_recover(clt_group *group, const char *folder);

/* Something that prune removed, or would remove. */
typedef struct {
    const char *path;
    const char *what; /* "data without a manifest", "checkpoint", ... */
    uint64_t bytes;   /* UINT64_MAX: unknown */
} clt_ckpt_waste;

typedef struct {
    int64_t keep; /* the newest valid checkpoints stay, so many; older valid ones go. Negative: all stay */
    double uploads_age; /* seconds; younger uploads stay: another program may be uploading */
    bool dry_run;       /* nothing is removed and no lock is taken */
    void (*each)(void *ctx, const clt_ckpt_waste *w); /* after each removal; NULL is allowed */
    void *ctx;
} clt_ckpt_prune_params;
clt_ckpt_prune_params clt_ckpt_prune_params_default(void); /* keep -1, uploads_age an hour */

/* Removes from a folder of checkpoints what killed saves left: data that no manifest names, unfinished
 * uploads, temporary folders; with `keep` also old checkpoints, oldest first. Valid is what clt_ckpt_scan
 * calls so: invalid and superseded checkpoints stay, and so does every file that a manifest names. A manifest
 * that is unreadable protects all data of its name, with a warning.
 *
 * Takes the folder's lock (clt_run_lock_take: CLT_IO while a run writes there) and stops with CLT_IO if it is
 * lost. CLT_IO also: the folder does not exist, something could not be removed. CLT_BAD_DATA: `folder` is a
 * checkpoint itself. CLT_BAD_CONFIG: keep is 0. Without the lock, a dry run beside a run that saves also
 * lists the data of that save. A temporary hint file of another name than save_latest_filename's default
 * stays. */
clt_status clt_ckpt_prune(const char *folder, const clt_ckpt_prune_params *p);

/* 16 hex digits that name a run, the same on every rank. */
clt_status clt_run_id(clt_group *group, char out[CLT_RUN_ID_BYTES]);

/* One run per folder: rank 0 locks FOLDER/run.lock (clt_io_lock), which also names the holder. The folder is
 * created when absent. A lock that another process holds is waited for: CLTRAIN_LOCK_WAIT seconds, or up to 5
 * minutes while the holder says that it is ending; then CLT_IO on every rank, with the holder's name.
 * CLT_STOPPED: a signal came meanwhile. Storage without locks: a warning. */
clt_status clt_run_lock_take(clt_group *group, const char *folder, clt_run_lock **out);
/* Tries once on behalf of this process alone, without a wait and without a message: 0, or as clt_io_lock_try,
 * which also sets `holder`. The folder exists. */
int clt_run_lock_try(const char *folder, clt_run_lock **out, char holder[CLT_IO_OWNER_BYTES]);
/* Tells waiting runs that this run is about to end and only has to save. NULL is allowed. */
void clt_run_lock_ending(clt_run_lock *l);
/* Whether the lock is held (clt_io_lock_is_held). A lease that could not be renewed in time is renewed first,
 * which takes up to 20 s and succeeds if nobody took it over meanwhile. True on other ranks than 0, on
 * storage without locks, and for NULL. */
bool clt_run_lock_is_held(const clt_run_lock *l);
/* Whether it is lost for good, because somebody else took it. Asks as clt_run_lock_is_held does. */
bool clt_run_lock_is_lost(const clt_run_lock *l);
void clt_run_lock_release(clt_run_lock *l); /* NULL is allowed */

/* --- reading --- */

/* Loads, hashes and verifications read ahead on threads, in the order in which chunks are needed and only
 * chunks that are: with up to 8 requests at a time on remote storage, up to 4 threads on others. One of a
 * process does so at a time, others read chunk by chunk; so reading takes at most 64 MiB + 16 MiB a thread.
 */

typedef struct clt_ckpt_reader clt_ckpt_reader;

typedef struct {
    const char *name, *role;
    int dims;
    int64_t shape[CLT_MAX_DIMS];
    uint64_t count;
    uint64_t stored; /* bytes on disk */
    int chunks;
} clt_ckpt_tensor;

/* Opens a checkpoint: reads and verifies the manifest, checks every number in it and the data files' sizes.
 * CLT_BAD_DATA names what is wrong. */
clt_status clt_ckpt_open(const char *path, clt_ckpt_reader **out);
void clt_ckpt_close(clt_ckpt_reader *r); /* NULL is allowed */
const char *clt_ckpt_path(const clt_ckpt_reader *r);
const clt_checkpoint_state *clt_ckpt_state(const clt_ckpt_reader *r);
const char *clt_ckpt_run_id(const clt_ckpt_reader *r);
int clt_ckpt_count(const clt_ckpt_reader *r); /* tensors of all roles */
void clt_ckpt_at(const clt_ckpt_reader *r, int i, clt_ckpt_tensor *out);
int clt_ckpt_find(const clt_ckpt_reader *r, const char *role, const char *name); /* -1: absent */
/* Elements [first, first + count) of tensor i; every chunk that is read is verified. CLT_BAD_DATA names file,
 * tensor, chunk and offset of damage. Fastest in ascending order. */
clt_status clt_ckpt_read(clt_ckpt_reader *r, int i, uint64_t first, float *dst, uint64_t count);
/* Reads and verifies every chunk and names all that are damaged; CLT_BAD_DATA if there is one. */
clt_status clt_ckpt_verify(clt_ckpt_reader *r);

typedef struct {
    /* load_ignore_keys: shell patterns of tensors that keep their values. A pattern matches the tensor's
     * name, or Composer's path of it or of a folder above: "state/model/NAME" for a weight,
     * "state/optimizers/OPTIMIZER/state/NAME/exp_avg" for a moment. */
    const char *const *ignore;
    int ignore_count;
    bool loose; /* load_strict_model_weights: false. Missing and extra tensors are warnings */
} clt_load_options;
/* Whether a pattern matches this tensor. opt may be NULL. */
bool clt_load_ignores(const clt_load_options *opt, const char *role, const char *name);

/* Fills the parts by name from a checkpoint. Chunks of which a part's slab has no element are not read.
 * CLT_BAD_DATA names the first tensor that differs from the model's. opt NULL: strict. Not collective. */
clt_status clt_ckpt_load(clt_ckpt_reader *r, const clt_slab_table *table, const clt_ckpt_part *parts, int n,
                         const clt_load_options *opt);

/* All elements of a tensor of a part into dst. Collective if the part is sharded: then every rank gets all
 * elements from their owners, or the status of a rank that failed. */
clt_status clt_ckpt_gather(clt_group *group, const clt_slab_table *table, const clt_ckpt_part *part,
                           int entry, float *dst);

/* --- the hash of a state --- */

/* XXH3-128 over, for every tensor in table order: role, 0, name, 0, number of dimensions (u64), each
 * dimension (u64), all elements as fp32; little endian. Independent of chunks, ranks, devices and
 * compression. `optimizer` covers all roles but "weight", in alphabetical order of roles; has_optimizer is
 * false when there are none.
 *
 * hash_parts is collective if a part is sharded: owners send their chunks to all ranks, a megabyte at a time,
 * and every rank gets the same hash, or the status of a rank that failed. Otherwise each rank hashes its own
 * state, and group may be NULL. */
typedef struct {
    clt_hash128 weights, optimizer;
    bool has_optimizer;
} clt_state_hash;
clt_status clt_ckpt_hash_parts(clt_group *group, const clt_slab_table *table, const clt_ckpt_part *parts,
                               int n, clt_state_hash *out);
clt_status clt_ckpt_hash(clt_ckpt_reader *r, clt_state_hash *out);

#endif
