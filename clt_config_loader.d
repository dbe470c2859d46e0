clt_config_loader.o: runtime/train/config/clt_config_loader.c \
  runtime/train/config/clt_config_finetune.h \
  runtime/train/config/clt_config_internal.h \
  runtime/train/config/clt_config.h runtime/data/clt_loader.h \
  runtime/base/clt_base.h runtime/base/clt_env.h \
  runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/base/clt_batch.h runtime/data/clt_fetch.h \
  runtime/data/clt_mds_index.h runtime/base/clt_io.h \
  runtime/data/clt_codec.h runtime/data/finetune/clt_finetune.h \
  runtime/data/image/clt_image_reader.h \
  runtime/data/image/clt_image_mix.h \
  runtime/data/image/clt_image_transform.h \
  runtime/data/image/clt_image.h runtime/data/image/clt_image_resize.h \
  runtime/data/icl/clt_icl_task.h runtime/base/clt_schema.h \
  runtime/base/clt_notice.h runtime/data/icl/clt_icl_stops.h \
  runtime/model/clt_model.h runtime/base/clt_weight_map.h \
  runtime/device/clt_slab.h runtime/device/clt_device.h \
  runtime/device/clt_facts.def runtime/ops/clt_fp8.h \
  runtime/ops/clt_ops.h runtime/ops/clt_op_attention.h \
  runtime/ops/clt_ops_context.h runtime/ops/clt_tensor.h \
  runtime/device/clt_tensor_map.h runtime/ops/clt_op_attention8.h \
  runtime/ops/clt_op_attention_step.h runtime/ops/clt_op_block_step.h \
  runtime/ops/clt_op_linear.h runtime/ops/clt_activation.h \
  runtime/ops/clt_op_elementwise.h runtime/ops/clt_op_embedding.h \
  runtime/ops/clt_op_gemm.h runtime/ops/clt_op_fp8.h \
  runtime/ops/clt_op_gemm8.h runtime/ops/clt_op_quantize.h \
  runtime/ops/clt_op_greedy.h runtime/ops/clt_op_loss.h \
  runtime/ops/clt_op_norm.h runtime/ops/clt_op_slab.h \
  runtime/train/config/clt_gauntlet.h \
  runtime/train/config/clt_schedule.h runtime/train/config/clt_time.h \
  runtime/train/config/clt_yaml.h \
  runtime/train/config/clt_config_image.h
runtime/train/config/clt_config_finetune.h:
runtime/train/config/clt_config_internal.h:
runtime/train/config/clt_config.h:
runtime/data/clt_loader.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/base/clt_batch.h:
runtime/data/clt_fetch.h:
runtime/data/clt_mds_index.h:
runtime/base/clt_io.h:
runtime/data/clt_codec.h:
runtime/data/finetune/clt_finetune.h:
runtime/data/image/clt_image_reader.h:
runtime/data/image/clt_image_mix.h:
runtime/data/image/clt_image_transform.h:
runtime/data/image/clt_image.h:
runtime/data/image/clt_image_resize.h:
runtime/data/icl/clt_icl_task.h:
runtime/base/clt_schema.h:
runtime/base/clt_notice.h:
runtime/data/icl/clt_icl_stops.h:
runtime/model/clt_model.h:
runtime/base/clt_weight_map.h:
runtime/device/clt_slab.h:
runtime/device/clt_device.h:
runtime/device/clt_facts.def:
runtime/ops/clt_fp8.h:
runtime/ops/clt_ops.h:
runtime/ops/clt_op_attention.h:
runtime/ops/clt_ops_context.h:
runtime/ops/clt_tensor.h:
runtime/device/clt_tensor_map.h:
runtime/ops/clt_op_attention8.h:
runtime/ops/clt_op_attention_step.h:
runtime/ops/clt_op_block_step.h:
runtime/ops/clt_op_linear.h:
runtime/ops/clt_activation.h:
runtime/ops/clt_op_elementwise.h:
runtime/ops/clt_op_embedding.h:
runtime/ops/clt_op_gemm.h:
runtime/ops/clt_op_fp8.h:
runtime/ops/clt_op_gemm8.h:
runtime/ops/clt_op_quantize.h:
runtime/ops/clt_op_greedy.h:
runtime/ops/clt_op_loss.h:
runtime/ops/clt_op_norm.h:
runtime/ops/clt_op_slab.h:
runtime/train/config/clt_gauntlet.h:
runtime/train/config/clt_schedule.h:
runtime/train/config/clt_time.h:
runtime/train/config/clt_yaml.h:
runtime/train/config/clt_config_image.h:
