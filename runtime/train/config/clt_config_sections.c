/* The tables of Composer's sections: algorithms and fsdp_config. */
#include "runtime/train/config/clt_config_internal.h"

#define KEY(name, field, def, help, ...) CLT_KEY(clt_config_builder, name, field, def, help, __VA_ARGS__)
#define IGNORED(kind, name, def, same, why) CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why)
#define REFUSE(name, def, why) CLT_KEY_REFUSE(name, def, why)
/* --- algorithms --- */

static const char *const clip_types[] = {"norm", "value", NULL}; /* clt_clip_type, from CLT_CLIP_NORM */
static const clt_refusal refused_clip_types[] = {
    {"adaptive", "clipping by the norm of each tensor's weights is not supported: use norm or value"},
    {NULL, NULL}};
static const clt_key clipping_keys[] = {
    KEY("clipping_type", clip_type, CLT_KEY_REQUIRED, "norm: by the global L2 norm; value: each element",
        .choices = clip_types, .refused = refused_clip_types),
    KEY("clipping_threshold", c.clip_threshold, CLT_KEY_REQUIRED, "largest norm or absolute value"),
};
static const clt_schema clipping_schema = CLT_SCHEMA(clipping_keys);

#define OUTSIDE "a model cannot be changed from outside: set "
static const clt_key algorithm_keys[] = {
    CLT_KEY_SECTION("gradient_clipping", NULL, "clip gradients before the optimizer step", 0,
                    &clipping_schema),
    IGNORED(map, "low_precision_layernorm", NULL, NULL, "norms compute in fp32"),
    REFUSE("alibi", NULL, OUTSIDE "model.attn_config.alibi"),
    REFUSE("gated_linear_units", NULL, OUTSIDE "model.ffn_config.ffn_type: mptglu"),
};
const clt_schema clt_config_algorithm_schema = CLT_SCHEMA(algorithm_keys);

/* --- fsdp_config --- */

#define PYTORCH CLT_KEY_OF_PYTORCH
#define ONE_FORM CLT_CONFIG_ONE_FORM
#define NO_ENGINE "Transformer Engine is not used"

#define AHEAD "limit_all_gathers says how far ahead weights are gathered"

/* In the order of clt_config_sharding.c's table. */
static const char *const strategies[] = {"FULL_SHARD",   "SHARD_GRAD_OP",       "NO_SHARD",
                                         "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", NULL};
static const char *const state_types[] = {"full", "sharded", NULL};

static const clt_key fsdp_keys[] = {
    KEY("activation_checkpointing", activation_checkpointing, "false",
        "true: recompute whole blocks in the backward pass, as cltrain.recompute: blocks", .nullable = true),
    KEY("sharding_strategy", sharding_strategy, "\"FULL_SHARD\"",
        "what each rank holds only its part of; NO_SHARD: nothing (cltrain.zero_stage 0); SHARD_GRAD_OP: "
        "moments, fp32 weights and gradients (2); FULL_SHARD: the weights that the model reads, too (3); "
        "HYBRID_SHARD: as FULL_SHARD, weights inside groups of ranks, which are replicas; "
        "_HYBRID_SHARD_ZERO2: as SHARD_GRAD_OP",
        .choices = strategies, .nullable = true),
    CLT_KEY_OF(
        &clt_kind_mixed_precision, clt_config_builder, "mixed_precision", mixed_precision, "\"DEFAULT\"",
        "PURE, or a map with reduce_dtype bf16: ranks exchange gradients in bf16, with precision "
        "amp_bf16 and numerics fast; otherwise in fp32. precision decides the types of everything else",
        .nullable = true),
    IGNORED(bool, "activation_checkpointing_reentrant", "true", NULL, PYTORCH),
    IGNORED(any, "activation_checkpointing_target", "null", NULL, "whole blocks are recomputed"),
    KEY("activation_cpu_offload", activation_cpu_offload, "false",
        "true: as cltrain.offload_activations: host", .nullable = true),
    KEY("cpu_offload", cpu_offload, "false", "true: as cltrain.offload: host", .nullable = true),
    KEY("data_parallel_shard_degree", c.shard.degree, "-1",
        "ranks that one copy of the weights is sharded over, at stage 3; -1: as many as "
        "data_parallel_replicate_degree leaves; the two multiply to the number of ranks",
        .nullable = true),
    KEY("data_parallel_replicate_degree", c.shard.replicas, "null",
        "copies of the weights, with a HYBRID strategy or none; -1: as many as "
        "data_parallel_shard_degree leaves; default: 1, with a HYBRID strategy -1",
        .nullable = true),
    REFUSE("device_mesh", "null",
           "set data_parallel_shard_degree and data_parallel_replicate_degree, as Composer asks"),
    KEY("reshard_after_forward", reshard_after_forward, "true",
        "false: weights are kept from the forward to the backward pass, which makes stage 3 stage 2",
        .nullable = true),
    KEY("limit_all_gathers", c.shard.limit_gathers, "true",
        "stage 3: true: the weights of 2 blocks are gathered ahead of their use; false: of 4",
        .nullable = true),
    IGNORED(str, "backward_prefetch", "\"BACKWARD_POST\"", NULL, AHEAD),
    IGNORED(int, "backward_prefetch_limit", "1", NULL, AHEAD),
    IGNORED(bool, "forward_prefetch", "false", NULL, AHEAD),
    IGNORED(int, "forward_prefetch_limit", "1", NULL, AHEAD),
    IGNORED(any, "ignored_modules", "null", NULL, PYTORCH),
    IGNORED(any, "process_group", "null", NULL, PYTORCH),
    IGNORED(bool, "use_orig_params", "true", NULL, PYTORCH),
    IGNORED(bool, "auto_wrap", "true", NULL, PYTORCH),
    IGNORED(bool, "flatten_parameters", "true", NULL, PYTORCH),
    IGNORED(bool, "sync_module_states", "false", "true", "all ranks start with the same weights"),
    CLT_KEY_IGNORED(&clt_kind_choice, "state_dict_type", "\"full\"", "\"full\"", ONE_FORM,
                    .choices = state_types),
    IGNORED(str, "sharded_ckpt_prefix_dir", "\"ep{epoch}-ba{batch}\"", NULL, ONE_FORM),
    IGNORED(bool, "load_monolith_rank0_only", "false", NULL, ONE_FORM),
    IGNORED(any, "load_planner", "null", NULL, ONE_FORM),
    IGNORED(any, "save_planner", "null", NULL, ONE_FORM),
    IGNORED(bool, "keep_low_precision_grads", "false", "false", "gradients are kept in fp32"),
    IGNORED(bool, "te_checkpoint_wrapper", "false", "false", NO_ENGINE),
    IGNORED(bool, "te_shard_fp8_weight", "false", "false", NO_ENGINE),
    IGNORED(bool, "verbose", "false", "false", "the option -v prints more"),
};
const clt_schema clt_config_fsdp_schema = CLT_SCHEMA(fsdp_keys);
