/* clt_weight_source: weights by name from a cltrain checkpoint, a Hugging Face folder (config.json and
 * model.safetensors, or its sharded form), a universal checkpoint of DeepSpeed (clt_universal.h, with a
 * config.json in it or beside it, or without), or a single .safetensors file. load_path, eval, generate,
 * import, export and diff read from it. */
#ifndef CLT_WEIGHT_SOURCE_H
#define CLT_WEIGHT_SOURCE_H

#include "runtime/base/clt_weight_map.h"
#include "runtime/checkpoint/clt_checkpoint.h"
#include "runtime/checkpoint/clt_universal.h"

typedef struct clt_weight_source clt_weight_source;

typedef enum {
    CLT_SOURCE_CHECKPOINT,
    CLT_SOURCE_HF,
    CLT_SOURCE_SAFETENSORS,
    CLT_SOURCE_UNIVERSAL
} clt_source_kind;

/* `path` as clt_ckpt_resolve takes it (not collective: ranks resolve first). */
clt_status clt_weight_source_open(const char *path, clt_weight_source **out);
void clt_weight_source_close(clt_weight_source *s); /* NULL is allowed */

clt_source_kind clt_weight_source_kind(const clt_weight_source *s);
const char *clt_weight_source_path(const clt_weight_source *s); /* what was opened */
const char *
clt_weight_source_model(const clt_weight_source *s); /* the model's configuration (JSON), NULL: none */
/* The checkpoint, NULL for other sources. */
clt_ckpt_reader *clt_weight_source_checkpoint(const clt_weight_source *s);

/* The universal checkpoint of DeepSpeed, NULL for other sources. */
const clt_universal *clt_weight_source_universal(const clt_weight_source *s);

/* From then on the tensors of other programs' files are those of `table`, which the map makes of them; one of
 * which a part is missing in the files is missing too. Takes over the map; NULL: names and layouts are equal,
 * and only vectors of ZeRO 3 get the shapes of the table's tensors.
 * No effect on checkpoints. Call it at most once, before a load. opt (NULL: strict) is that of the load.
 * CLT_BAD_DATA names the first tensor of the files that is missing or has another shape than the model needs,
 * or else the first that no model of the family has. */
clt_status clt_weight_source_use_map(clt_weight_source *s, const clt_slab_table *table, clt_weight_map *map,
                                     const clt_load_options *opt);

/* The type of the files' weights, as config.json calls it: "float32", "bfloat16" or "float16"; "float32"
 * where types are mixed, and for checkpoints. With a map, only the tensors that the model needs count: masks
 * and frequencies beside them have types of their own. */
const char *clt_weight_source_dtype(const clt_weight_source *s);

/* Tensors of every role; those of HF files have the role "weight", those of a universal checkpoint also those
 * of its moments. Of other programs' names a prefix "model." (Composer's) is removed, and "transformer." is
 * put before those of an MPT without it. `stored` and `chunks` are 0 but for checkpoints. */
int clt_weight_source_count(const clt_weight_source *s);
void clt_weight_source_at(const clt_weight_source *s, int i, clt_ckpt_tensor *out);
int clt_weight_source_find(const clt_weight_source *s, const char *role, const char *name); /* -1: absent */
clt_status clt_weight_source_read(clt_weight_source *s, int i, uint64_t first, float *dst, uint64_t count);
/* Tensor i, a weight, is from then on `values`, which it takes over (clt_free); at most once for a tensor. A
 * load of a checkpoint then reads it chunk by chunk. */
void clt_weight_source_replace(clt_weight_source *s, int i, const int64_t *shape, float *values);
/* Verifies every chunk of a checkpoint, or the hashes that a safetensors file has in its metadata. *hashed
 * (may be NULL): how many tensors have a hash. */
clt_status clt_weight_source_verify(clt_weight_source *s, int *hashed);

/* Like clt_ckpt_load. In HF files, an lm_head.weight that the table does not have is the tied copy and is
 * ignored. */
clt_status clt_weight_source_load(clt_weight_source *s, const clt_slab_table *table,
                                  const clt_ckpt_part *parts, int n, const clt_load_options *opt);
/* The comparison with which a load begins: whether the source has this table's tensors of that role, and no
 * head of its own beside a tied one. */
clt_status clt_weight_source_check(clt_weight_source *s, const clt_slab_table *table, const char *role,
                                   const clt_load_options *opt);

#endif
