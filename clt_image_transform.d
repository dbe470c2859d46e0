clt_image_transform.o: runtime/data/image/clt_image_transform.c \
  runtime/data/image/clt_image_transform.h \
  runtime/data/image/clt_image.h runtime/base/clt_base.h \
  runtime/base/clt_env.h runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/data/image/clt_image_resize.h runtime/base/clt_dmath.h \
  runtime/base/clt_philox.h
runtime/data/image/clt_image_transform.h:
runtime/data/image/clt_image.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/data/image/clt_image_resize.h:
runtime/base/clt_dmath.h:
runtime/base/clt_philox.h:
