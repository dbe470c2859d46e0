/* Shared by clt_weight_source.c and clt_weight_source_map.c only. */
#ifndef CLT_WEIGHT_SOURCE_INTERNAL_H
#define CLT_WEIGHT_SOURCE_INTERNAL_H

#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"

/* Roles of a universal checkpoint; other files have weights alone. */
enum { CLT_SOURCE_ROLES = CLT_UNIVERSAL_STATES };

/* A tensor of a safetensors file or a universal checkpoint, or of a model that a map makes of some. */
typedef struct {
    const char *name;  /* under which it is found; belongs to the shard, to `names` or is static */
    int shard, tensor; /* shard -1: tensor is an index of the map's model, with this shape: */
    bool flat;         /* a vector that has the elements of a tensor, whose shape is the model's */
    int dims;
    int64_t shape[CLT_MAX_DIMS];
    float *values; /* clt_weight_source_replace; NULL: those of the file */
} clt_view;

/* A weight of a checkpoint that clt_weight_source_replace gave other values. */
typedef struct {
    int tensor;
    int64_t shape[CLT_MAX_DIMS];
    float *values;
} clt_replaced;

/* What a map reads from: the files of one role. */
typedef struct {
    clt_weight_source *source;
    int role;
} clt_role_reader;

struct clt_weight_source {
    clt_source_kind kind;
    char *path, *model;
    clt_ckpt_reader *ckpt;
    clt_replaced *replaced; /* of ckpt */
    int n_replaced;
    clt_safetensors **shard;
    int shards;
    clt_universal *universal;
    clt_view *view; /* sorted by name; tensor i has the role i / views and the view i % views */
    int views;
    clt_view *file; /* with a map: the files' tensors, [map->files], in the order of the map */
    clt_weight_map *map;
    clt_weight_mapper mapper[CLT_SOURCE_ROLES];
    clt_role_reader reader[CLT_SOURCE_ROLES];
    clt_strv names; /* of the map's model, and those that files have without a prefix */
};

/* Elements of a tensor of the files, of one role. */
clt_status clt_source_read_file(clt_weight_source *s, const clt_view *v, int role, uint64_t first, float *dst,
                                uint64_t count);
/* Sorts the views by name; CLT_BAD_DATA: a name appears twice. */
clt_status clt_source_finish_views(clt_weight_source *s);

#endif
