/* step_offload: what clbench step measures of what is in host memory or files (--offload,
 * --offload-parameters, --offload-gradients): the bytes that a step moves, the rate of its update beside that
 * of the link or the disk alone, and what bounds the step. */
#ifndef CLBENCH_STEP_OFFLOAD_H
#define CLBENCH_STEP_OFFLOAD_H

#include "runtime/train/engine/clt_engine.h"
#include "tools/clbench/bench_link.h"

typedef struct {
    const char *where;  /* host, file; NULL: none */
    const char *folder; /* of the files */
    double ratio;       /* negative: the plan decides */
    bool activations;   /* inputs of blocks in host memory, as cltrain.offload_activations */
    bool parameters;    /* weights in host memory, as cltrain.offload_parameters */
    bool gradients;     /* sums of gradients there, as cltrain.offload_gradients */
    bool files;         /* these three in files instead; with where file */
    bool update;        /* the step of offloaded state on the host's cores, as cltrain.offload_update */
} step_offload_options;

typedef struct {
    bench_link_rates link;               /* with host memory */
    clt_scratch_rates disk;              /* with files; in the end the mean of before and after */
    clt_offload_traffic step;            /* of one step's update, and its seconds */
    uint64_t moved_in, moved_out;        /* bytes to the device and back, of a whole step */
    uint64_t device_bytes, pinned_bytes; /* in use */
    uint64_t file_bytes;                 /* in files, as planned */
} step_offload;

/* Whether there is anything to measure. */
bool step_offload_any(const step_offload_options *o);
/* The first error of the options; NULL: none. */
const char *step_offload_check(const step_offload_options *o);
/* Keys of section cltrain, which begin with a comma; the caller frees them. */
char *step_offload_keys(const step_offload_options *o);
/* Before the engine: the link or the disk alone. CLT_NO_MEMORY: the host's memory does not take the plan. */
clt_status step_offload_begin(const step_offload_options *o, clt_device *dev, const clt_plan *p,
                              step_offload *out);

/* What each of the last `steps` steps has moved in its update, and as a whole. */
clt_offload_traffic step_offload_since(const clt_engine *e, clt_offload_traffic before, int steps);
void step_offload_moved(step_offload *w, const clt_device *dev, clt_device_counters before, int steps);
/* Before the engine is destroyed, which takes a while where it has much of the host's memory: notes the
 * memory, measures the disk again, and says what is known so far. seconds: of a step. */
void step_offload_end(const step_offload_options *o, step_offload *w, const clt_device *dev, const char *name,
                      double seconds);

/* Weights of large models, whose own initial values take minutes: those of the first elements of each tensor,
 * again and again. */
clt_status step_offload_weights(const clt_model_config *m, const clt_slab_table *t, uint64_t seed,
                                clt_slab *weights);

/* Lines below the row of a step that takes `seconds`. */
void step_offload_print(const step_offload_options *o, const step_offload *w, const clt_plan *p,
                        double seconds);
/* Appends its keys of the row, which end with a comma. */
void step_offload_json(const step_offload_options *o, const step_offload *w, const clt_plan *p,
                       double seconds, clt_str *out);

#endif
