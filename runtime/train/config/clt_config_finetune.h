/* Rows of train_loader.dataset and eval_loader.dataset for the loader `finetuning`. Internal. */
#ifndef CLT_CONFIG_FINETUNE_H
#define CLT_CONFIG_FINETUNE_H

#include "runtime/train/config/clt_config_internal.h"

extern const clt_kind clt_kind_packing_ratio, /* double; 0: auto */
    clt_kind_target_prompts,                  /* int64_t, as in clt_finetune_params */
    clt_kind_preprocessing;                   /* json_t *, borrowed: a string or a map */
extern const clt_schema clt_config_hf_schema;
extern const char *const clt_config_responses[]; /* in the order of clt_target_responses */

#define CLT_FINETUNE_KEY(name, field, def, help, ...)                                                        \
    CLT_KEY(clt_loader_config, name, finetune.field, def, "finetuning: " help, __VA_ARGS__)
#define CLT_FINETUNE_WIDTH                                                                                   \
    "narrower batches in cltrain data batches; training has the same results without it"
#define CLT_CONFIG_FINETUNE_ROWS                                                                             \
    CLT_FINETUNE_KEY("hf_name", hf_name, "null",                                                             \
                     "a folder of JSONL files, one file, or json with hf_kwargs", .nullable = true),         \
        CLT_KEY_SECTION("hf_kwargs", NULL, "finetuning: where the files are, with hf_name json", 0,          \
                        &clt_config_hf_schema),                                                              \
        CLT_KEY_IGNORED(&clt_kind_bool, "safe_load", "false", NULL,                                          \
                        "only JSON and MDS are read, which cannot run code"),                                \
        CLT_KEY_OF(&clt_kind_preprocessing, clt_loader_config, "preprocessing_fn", finetune.preprocessing,   \
                   "null",                                                                                   \
                   "finetuning: {prompt: A, response: B} names the columns of a line; or the name of a "     \
                   "function of LLM Foundry itself (docs/finetuning.md)",                                    \
                   .nullable = true),                                                                        \
        CLT_KEY_REFUSE("decoder_only_format", "true", "encoder-decoder models are not supported"),           \
        CLT_KEY_OF(&clt_kind_packing_ratio, clt_loader_config, "packing_ratio", finetune.packing_ratio,      \
                   "1.0", "finetuning: samples per row of a batch; auto: as many as leave none behind",      \
                   .nullable = true),                                                                        \
        CLT_FINETUNE_KEY("max_leftover_bins_to_keep", max_leftover, "null",                                  \
                         "packed rows that wait for the next batch at most; null: all", .nullable = true),   \
        CLT_KEY_OF(&clt_kind_target_prompts, clt_loader_config, "target_prompts", finetune.target_prompts,   \
                   "\"none\"", "finetuning: prompts that are trained on: none, all, or length>=N tokens"),   \
        CLT_FINETUNE_KEY("target_responses", target_responses, "\"last\"",                                   \
                         "responses of a chat that are trained on", .choices = clt_config_responses),        \
        CLT_FINETUNE_KEY("allow_pad_trimming", allow_pad_trimming, "false", CLT_FINETUNE_WIDTH),             \
        CLT_FINETUNE_KEY("pad_to_longest", pad_to_longest, "false", CLT_FINETUNE_WIDTH),                     \
        CLT_KEY_IGNORED(&clt_kind_int, "auto_packing_replication", "null", NULL,                             \
                        "packing does not depend on the number of ranks")

/* dataset.shuffle_seed before its default, which depends on other keys, is set. */
#define CLT_SEED_NOT_GIVEN INT64_MIN
/* What one loader says beyond its table: which keys belong to its kind, and their ranges. `path` is the
 * loader's. Sets the defaults that depend on other keys. */
clt_status clt_config_check_finetune(clt_schema_reader *r, clt_config *c, const char *path, bool eval,
                                     clt_loader_config *l);

/* The part of clt_config_loader_params that is about this loader. */
clt_finetune_params clt_config_finetune_params(const clt_config *c, const clt_loader_config *l);

#endif
