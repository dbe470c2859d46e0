test_image.o: test/unit/test_image.c runtime/base/clt_io.h \
  runtime/base/clt_base.h runtime/base/clt_env.h \
  runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/checkpoint/clt_safetensors.h runtime/data/image/clt_image.h \
  test/golden_util.h
runtime/base/clt_io.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/checkpoint/clt_safetensors.h:
runtime/data/image/clt_image.h:
test/golden_util.h:
