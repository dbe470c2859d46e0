/* clt_hf_model: what the model family of transformers' families shares with the files beside it. */
#ifndef CLT_HF_MODEL_H
#define CLT_HF_MODEL_H

#include "runtime/model/hf/clt_hf.h"

/* The family of a configuration that clt_hf_model.c has read. */
const clt_hf_family *clt_hf_family_of(const clt_model_config *config);
/* As the member of clt_model_family. */
clt_status clt_hf_weight_map(const clt_model_config *config, const clt_slab_table *table,
                             clt_weight_map **out);

#endif
