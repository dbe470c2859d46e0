/* What the files of clt_deepspeed share. Not for other files. */
#ifndef CLT_DEEPSPEED_INTERNAL_H
#define CLT_DEEPSPEED_INTERNAL_H

#include "runtime/train/config/clt_config_internal.h"
#include "runtime/train/config/clt_deepspeed.h"

typedef struct {
    clt_config *c;       /* gets the values */
    clt_yaml *file;      /* ds_config.json */
    json_t *values;      /* the same as values, without "auto" */
    const char *path;    /* of the file; lives as long as c */
    clt_schema_reader r; /* of the file: places and notices */
    int64_t ranks;
} clt_deepspeed;

/* --- clt_deepspeed_keys.c --- */

extern const clt_schema clt_deepspeed_schema;
/* The table of optimizer.params or scheduler.params; NULL: there is no such type. Names of optimizers are
 * matched in any case of letters but SGD, which is PyTorch's. */
const clt_schema *clt_deepspeed_optimizer_params(const char *type);
const clt_schema *clt_deepspeed_scheduler_params(const char *type);
/* The YAML's scheduler.name for a type that is known. */
const char *clt_deepspeed_scheduler_name(const char *type);
/* Why the optimizer of that type is refused; NULL: it is not, or is unknown. */
const char *clt_deepspeed_refused_optimizer(const char *type);

/* --- clt_deepspeed.c: values of the file (borrowed), and where they go --- */

/* The value at a dotted path; NULL: not given, null or "auto". */
const json_t *clt_deepspeed_get(const clt_deepspeed *d, const char *path);
bool clt_deepspeed_true(const clt_deepspeed *d, const char *path);
/* A number, or `otherwise`. */
double clt_deepspeed_number(const clt_deepspeed *d, const char *path, double otherwise);
/* A string, or `otherwise`. */
const char *clt_deepspeed_text(const clt_deepspeed *d, const char *path, const char *otherwise);

/* The file's key `from` asks for this value of the YAML's key `to`. Takes over value. CLT_BAD_CONFIG, naming
 * both places, if the YAML says something else. */
clt_status clt_deepspeed_put(clt_deepspeed *d, const char *from, const char *to, json_t *value);
/* The value for `to` if neither file gives it: DeepSpeed's default of `from`. Takes over value. */
clt_status clt_deepspeed_fill(clt_deepspeed *d, const char *from, const char *to, json_t *value);
/* "keys ... contradict each other" about the file's key and the YAML's. */
clt_status clt_deepspeed_contradiction(clt_deepspeed *d, const char *from, const char *to, const char *text);

/* --- clt_deepspeed_map.c, _train.c, _elastic.c: the steps --- */

clt_status clt_deepspeed_map(clt_deepspeed *d);
/* The batch of an elastic file, whose section is enabled. */
clt_status clt_deepspeed_map_elastic(clt_deepspeed *d);
clt_status clt_deepspeed_map_optimizer(clt_deepspeed *d);
clt_status clt_deepspeed_map_scheduler(clt_deepspeed *d);

#endif
