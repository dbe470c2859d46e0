/* Rows of test_config_keys for schedulers and DeepSpeed's optimizers: a part of its table `cases`. */
#define WARMUP "scheduler={name: warmup_lr, t_warmup: null}"
#define COSINE "scheduler={name: warmup_cosine_lr, t_warmup: null, total_num_steps: 5}"
#define CYCLE "scheduler={name: one_cycle, t_warmup: null, cycle_min_lr: 0.1, cycle_max_lr: 0.2}"
#define MOMENTUM CYCLE, "scheduler.cycle_momentum=true"
#define RANGE "scheduler={name: lr_range_test, t_warmup: null}"
{"scheduler.alpha", "0.5", {"scheduler.name=constant_with_warmup"}},
    {"scheduler.alpha_i", "0.5", {"scheduler.name=linear_decay_with_warmup"}},
    {"scheduler.t_scale", "3ba", {"scheduler.name=inv_sqrt_with_warmup", "scheduler.t_cooldown=2ba"}},
    {"scheduler.t_cooldown", "3ba", {"scheduler.name=inv_sqrt_with_warmup", "scheduler.t_scale=2ba"}},
    {"scheduler.alpha_f_decay",
     "0.5",
     {"scheduler.name=inv_sqrt_with_warmup", "scheduler.t_scale=2ba", "scheduler.t_cooldown=2ba"}},
    {"scheduler.alpha_f_cooldown",
     "0.5",
     {"scheduler.name=inv_sqrt_with_warmup", "scheduler.t_scale=2ba", "scheduler.t_cooldown=2ba"}},
    {"scheduler.warmup_min_lr", "0.5", {WARMUP}}, {"scheduler.warmup_max_lr", "0.5", {WARMUP}},
    {"scheduler.warmup_num_steps", "7", {WARMUP}}, {"scheduler.warmup_type", "linear", {WARMUP}},
    {"scheduler.total_num_steps", "9", {COSINE}}, {"scheduler.warmup_min_ratio", "0.5", {COSINE}},
    {"scheduler.cos_min_ratio", "0.5", {COSINE}}, {"scheduler.cycle_min_lr", "0.5", {CYCLE}},
    {"scheduler.cycle_max_lr", "0.5", {CYCLE}}, {"scheduler.cycle_first_step_size", "7", {CYCLE}},
    {"scheduler.cycle_second_step_size", "7", {CYCLE}}, {"scheduler.cycle_first_stair_count", "7", {CYCLE}},
    {"scheduler.cycle_second_stair_count", "7", {CYCLE}}, {"scheduler.decay_step_size", "7", {CYCLE}},
    {"scheduler.decay_lr_rate", "0.5", {CYCLE}}, {"scheduler.lr_range_test_min_lr", "0.5", {RANGE}},
    {"scheduler.lr_range_test_step_size", "7", {RANGE}}, {"scheduler.lr_range_test_step_rate", "7", {RANGE}},
    {"scheduler.cycle_momentum", "true", {CYCLE}}, {"scheduler.cycle_min_mom", "0.5", {MOMENTUM}},
    {"scheduler.cycle_max_mom", "0.5", {MOMENTUM}}, {"scheduler.decay_mom_rate", "0.5", {MOMENTUM}},
    {"scheduler.lr_range_test_staircase", "true", {RANGE}},
    {"optimizer.adam_w_mode", "false", {"optimizer.name=adamw"}},
    {"optimizer.bias_correction", "false", {"optimizer.name=adamw"}},
    {"optimizer.max_coeff", "5", {"optimizer.name=lamb"}},
    {"optimizer.min_coeff", "0.5", {"optimizer={name: lamb, max_coeff: 2}"}},
