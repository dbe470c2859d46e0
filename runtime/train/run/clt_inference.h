/* clt_inference: a model loaded from a checkpoint, a folder of checkpoints or a Hugging Face folder onto a
 * device of its own: in fp32 with exact numerics, or in a 16-bit type with numerics fast, where only norms
 * and biases stay fp32. Text generation and `cltrain eval --logits` share it. */
#ifndef CLT_INFERENCE_H
#define CLT_INFERENCE_H

#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/model/clt_model.h"

typedef struct {
    clt_device *dev;
    clt_ops *ops;
    clt_weight_source *src;
    clt_slab_table table;
    clt_slab *weights; /* fp32; with a 16-bit type those that the model reads in fp32 */
    clt_slab *narrow;  /* with a 16-bit type: all weights */
    clt_model *model;
    clt_model_config *cfg;
    clt_model_facts facts;
    clt_dtype type;
    clt_buffer *stage; /* while weights are loaded */
} clt_inference;

/* Opens the source and reads its model's configuration. *x starts from {0}; close it after errors too. */
clt_status clt_inference_open(clt_inference *x, const char *source);
typedef struct {
    const char *device; /* pattern or NULL */
    int64_t seq;        /* tokens of a text at most */
    int64_t texts;      /* as in clt_model_shape */
    clt_dtype type;     /* of weights and activations */
} clt_inference_params;
/* Then opens the device, loads the weights and makes the model. */
clt_status clt_inference_load(clt_inference *x, const clt_inference_params *p);
void clt_inference_close(clt_inference *x);

/* `cltrain eval SOURCE --logits IN OUT`: reads the token ids `input_ids` (int32 or int64 [rows, length]) of
 * the safetensors file `in`, and writes the file `out` with `logits` (fp32 [rows, length, vocabulary]): the
 * model's logits after every position, each row a text of its own. CLT_BAD_DATA: no such tensor, ids outside
 * the vocabulary, rows longer than the model's longest text. */
clt_status clt_inference_logits(const char *source, const char *device, const char *in, const char *out);

#endif
