/* eval_models: `cltrain eval CONFIG.yaml`: evaluates every model of a YAML and prints the results. */
#ifndef EVAL_MODELS_H
#define EVAL_MODELS_H

#include "runtime/base/clt_base.h"

typedef struct {
    const char *device; /* pattern or NULL */
    bool json, items;
} eval_models_options;

/* `path` is a training configuration or LLM Foundry's evaluation YAML. Prints JSON lines for eval loaders;
 * for tasks a table, or JSON lines with `json`. */
clt_status eval_models(const char *path, const char *const *overrides, size_t n,
                       const eval_models_options *o);

#endif
