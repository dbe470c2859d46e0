clt_loader.o: runtime/data/clt_loader.c runtime/data/clt_loader.h \
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
  runtime/base/clt_thread.h runtime/data/clt_reader.h \
  runtime/data/clt_mds.h runtime/data/clt_sequence.h
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
runtime/base/clt_thread.h:
runtime/data/clt_reader.h:
runtime/data/clt_mds.h:
runtime/data/clt_sequence.h:
