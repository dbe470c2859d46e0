/* clt_vit_internal: the Vision Transformer of timm (its class VisionTransformer). Its blocks are those of
 * MPT's decoder, with biases and without a causal mask; this folder has what is before and after them. An
 * image is cut into square patches, row by row; a Linear makes a token of each, a learned class token stands
 * in front of them, and learned positions are added to all. Behind the blocks the class token, or the mean of
 * the patches, goes through the final norm and a Linear to the classes.
 *
 * T tokens of an image: patches + 1. B images of a microbatch. Only for this folder. */
#ifndef CLT_VIT_INTERNAL_H
#define CLT_VIT_INTERNAL_H

#include "runtime/model/mpt/clt_mpt_internal.h"

typedef struct {
    clt_mpt_config block; /* as the decoder computes the blocks; vocab_size: classes; max_seq_len: T */
    int64_t image_size, patch_size;
    int64_t grid;  /* patches of a row, and of a column: pixels that fill no patch are cut off */
    int64_t patch; /* pixels of a patch, of three colours: 3 patch_size^2 */
    double mlp_ratio;
    bool average; /* pooling avg: the mean of the patches without the class token; false: the class token */
} clt_vit_config;

/* --- configuration and parameters (clt_vit_config.c, clt_vit_params.c), as the members of
 * clt_model_family --- */

extern const clt_schema clt_vit_schema;
clt_status clt_vit_read(clt_schema_reader *r, const char *path, json_t *o, clt_model_config *out);
/* A config.json of timm; the second makes *keys, an object of this family's keys, of it (clt_vit_timm.c). */
bool clt_vit_recognises(const json_t *o);
clt_status clt_vit_from_timm(clt_schema_reader *r, json_t *o, json_t **keys);
json_t *clt_vit_to_json(const clt_model_config *config);
clt_status clt_vit_table(const clt_model_config *config, clt_slab_table *table);
void clt_vit_init_range(const clt_model_config *config, const clt_slab_table *table, int entry, uint64_t seed,
                        uint64_t first, uint64_t count, float *out);
int clt_vit_units(const clt_model_config *config, const clt_slab_table *table, clt_model_unit **units);
int clt_vit_layer_of(const clt_model_config *config, const clt_slab_table *table, int entry, int *layers);
bool clt_vit_reads_wide(const clt_model_config *config, const clt_model_shape *shape,
                        const clt_slab_table *table, int entry);
bool clt_vit_resample(const clt_model_config *config, int entry, const int64_t *shape, const float *from,
                      float *to);
double clt_vit_train_flops(const clt_model_config *config, int64_t seq);

/* Places of the first tensors in the table, which are the unit of the embedding. */
enum { CLT_VIT_CLASS, CLT_VIT_POSITIONS, CLT_VIT_PATCH_WEIGHT, CLT_VIT_PATCH_BIAS };

/* --- the model --- */

typedef struct {
    clt_mpt m;
    clt_vit_config cfg;
    int head_bias; /* its place in the table; the weight's is m.index.lm_head */
    int64_t cols;  /* of a row of patches: cfg.patch, padded to a multiple of 16 for matrix units */
    /* [B * T, cols], of the branches' type; the rows of class tokens and the padding are 0 */
    clt_ref patches;
    clt_ref padded, dpadded; /* with padding: the weight of the branches' type, its gradient [width, cols] */
    clt_ref zeros;           /* [width] */
    clt_ref pooled, dpooled; /* pooling avg: the final norm's input and its gradient [B, width] */
    clt_ref pixels, wanted;  /* fp32 parts of the microbatch's buffer [B, 3, H, W], [B, classes] */
    clt_ref label;           /* int32 [B] */
} clt_vit;

/* As the member of clt_model_family. */
clt_status clt_vit_predictions(clt_model *model, int64_t samples, clt_model_prediction *out);

/* What stands around the blocks (clt_vit_ends.c, clt_vit_head.c). */
extern const clt_mpt_ends clt_vit_ends;

#endif
