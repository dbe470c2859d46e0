/* clt_universal: DeepSpeed's universal checkpoints, in which every parameter has a folder with its fp32
 * values and its moments, whatever the number of ranks that saved them:
 *
 *     latest_universal                 text: TAG
 *     TAG/zero/PARAMETER/fp32.pt       exp_avg.pt, exp_avg_sq.pt, step.pt beside it
 *     TAG/zero/optimizer_state.pt      loss scaler, hyperparameters
 *     TAG/mp_rank_00_model_states.pt   counters, and the module's weights
 *
 * ZeRO 1 and 2 write dictionaries {"param": tensor, "cat_dim": 0}, ZeRO 3 bare vectors without step.pt, whose
 * shape is that of the model. The files are read without executing their pickles (clt_pickle.h). */
#ifndef CLT_UNIVERSAL_H
#define CLT_UNIVERSAL_H

#include "runtime/checkpoint/clt_pickle.h"

enum { CLT_UNIVERSAL_MAX_PARAMS = 1 << 17, CLT_UNIVERSAL_MAX_NAME = 1024 };

typedef enum {
    CLT_UNIVERSAL_WEIGHT, /* fp32.pt */
    CLT_UNIVERSAL_EXP_AVG,
    CLT_UNIVERSAL_EXP_AVG_SQ,
    CLT_UNIVERSAL_STATES
} clt_universal_state;
/* "weight", "exp_avg", "exp_avg_sq": the roles of checkpoints. */
const char *clt_universal_role(clt_universal_state s);

typedef struct {
    char *name; /* without "module." in front */
    int dims;
    uint64_t shape[CLT_PICKLE_MAX_DIMS];
    uint64_t count;
    bool flat; /* of ZeRO 3: dims is 1, and the shape is unknown */
} clt_universal_param;

/* --- reading --- */

typedef struct clt_universal clt_universal;

/* Whether `path` is a universal checkpoint (the folder with `zero`), or a folder whose latest_universal names
 * one: *folder is the checkpoint, to be freed with clt_free, NULL if it is neither. CLT_BAD_DATA:
 * latest_universal names no folder. */
clt_status clt_universal_find(const char *path, char **folder);
/* CLT_BAD_DATA with the command that converts them if `path` has the shards of DeepSpeed's ordinary
 * checkpoints. */
clt_status clt_universal_refuse_shards(const char *path);

/* Opens a checkpoint and checks every file of every parameter but for its data. CLT_BAD_DATA, CLT_IO,
 * CLT_NO_MEMORY. */
clt_status clt_universal_open(const char *folder, clt_universal **out);
void clt_universal_close(clt_universal *u); /* NULL is allowed */
int clt_universal_count(const clt_universal *u);
const clt_universal_param *clt_universal_at(const clt_universal *u, int i); /* sorted by folder */
bool clt_universal_has(const clt_universal *u, clt_universal_state s);      /* all parameters, or none */
/* Optimizer steps, and samples that they trained on; -1: the files do not say. */
int64_t clt_universal_steps(const clt_universal *u);
int64_t clt_universal_samples(const clt_universal *u);
/* Elements [first, first + count). Before the first element of a file its CRC-32 is compared. */
clt_status clt_universal_read(clt_universal *u, int i, clt_universal_state s, uint64_t first, float *dst,
                              uint64_t count);
/* Compares the CRC-32 of all data. */
clt_status clt_universal_verify(clt_universal *u);

/* --- writing (clt_universal_write.c) --- */

typedef struct {
    const char *folder;               /* that gets latest_universal and the checkpoint; it exists */
    const clt_universal_param *param; /* [n]; not flat */
    int n;
    bool moments[CLT_UNIVERSAL_STATES]; /* which moments are written; [CLT_UNIVERSAL_WEIGHT] has no meaning */
    int64_t steps, samples;
    clt_status (*fill)(void *ctx, int i, clt_universal_state s, uint64_t first, float *dst, uint64_t count);
    void *ctx;
} clt_universal_spec;

/* "global_step6_universal"; the caller frees it. */
char *clt_universal_tag(int64_t steps);
/* Writes FOLDER/TAG in the form of ZeRO 1 and 2, which DeepSpeed also loads with ZeRO 3, then
 * latest_universal. FOLDER/TAG must not exist; after a failure it does not. */
clt_status clt_universal_write(const clt_universal_spec *s);

#endif
