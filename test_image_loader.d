test_image_loader.o: test/unit/test_image_loader.c runtime/base/clt_io.h \
  runtime/base/clt_base.h runtime/base/clt_env.h \
  runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/checkpoint/clt_safetensors.h runtime/data/clt_loader.h \
  runtime/base/clt_batch.h runtime/data/clt_fetch.h \
  runtime/data/clt_mds_index.h runtime/data/clt_codec.h \
  runtime/data/finetune/clt_finetune.h \
  runtime/data/image/clt_image_reader.h \
  runtime/data/image/clt_image_mix.h \
  runtime/data/image/clt_image_transform.h \
  runtime/data/image/clt_image.h runtime/data/image/clt_image_resize.h \
  test/golden_util.h
runtime/base/clt_io.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/checkpoint/clt_safetensors.h:
runtime/data/clt_loader.h:
runtime/base/clt_batch.h:
runtime/data/clt_fetch.h:
runtime/data/clt_mds_index.h:
runtime/data/clt_codec.h:
runtime/data/finetune/clt_finetune.h:
runtime/data/image/clt_image_reader.h:
runtime/data/image/clt_image_mix.h:
runtime/data/image/clt_image_transform.h:
runtime/data/image/clt_image.h:
runtime/data/image/clt_image_resize.h:
test/golden_util.h:
