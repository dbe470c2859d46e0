test_image_sources.o: test/unit/test_image_sources.c \
  runtime/base/clt_io.h runtime/base/clt_base.h runtime/base/clt_env.h \
  runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/data/clt_mds.h runtime/data/clt_fetch.h \
  runtime/data/clt_mds_index.h runtime/data/clt_codec.h \
  runtime/data/image/clt_image.h runtime/data/image/clt_image_folder.h \
  test/golden_util.h
runtime/base/clt_io.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/data/clt_mds.h:
runtime/data/clt_fetch.h:
runtime/data/clt_mds_index.h:
runtime/data/clt_codec.h:
runtime/data/image/clt_image.h:
runtime/data/image/clt_image_folder.h:
test/golden_util.h:
