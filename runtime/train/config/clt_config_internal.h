/* What the files of clt_config share: the struct that the tables fill, and the tables. Not for other folders.
 */
#ifndef CLT_CONFIG_INTERNAL_H
#define CLT_CONFIG_INTERNAL_H

#include "runtime/train/config/clt_config.h"

/* The sections that need more than one key at a time are first kept as they are written. */
typedef struct {
    int kind; /* clt_optimizer_kind; beyond it: known names that are refused */
    double lr, beta1, beta2, eps, weight_decay; /* NaN: not given */
    json_t *disable_grad, *param_groups;        /* borrowed */
} clt_config_optimizer_raw;

typedef struct {
    int kind;
    clt_time t_warmup, t_max, t_scale, t_cooldown;                   /* the last two: value -1: not given */
    double alpha, alpha_i, alpha_f, alpha_f_decay, alpha_f_cooldown; /* NaN: not given */
} clt_config_scheduler_raw;

typedef struct {
    clt_config c; /* first, so that a pointer to one is a pointer to the other */
    int precision, tune, autoresume, numerics, recompute; /* the last three -1: not given */
    int check_action;
    bool activation_checkpointing;
    clt_config_optimizer_raw optimizer;
    clt_config_scheduler_raw scheduler;
    json_t *model, *eval_loader, *eval_loaders; /* borrowed */
} clt_config_builder;

extern const clt_schema clt_config_top_schema, clt_config_loader_schema, clt_config_optimizer_schema,
    clt_config_scheduler_schema;

/* Readers used by several tables. */
clt_status clt_config_read_time(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                void *field);
clt_status clt_config_read_name(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                void *field);
clt_status clt_config_keep(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v, void *field);

/* The steps after the tables have been read. */
clt_status clt_config_resolve_loaders(clt_schema_reader *r, clt_config_builder *b);
clt_status clt_config_resolve_optimizer(clt_schema_reader *r, clt_config_builder *b);
clt_status clt_config_resolve_scheduler(clt_schema_reader *r, clt_config_builder *b);

#endif
