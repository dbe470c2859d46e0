clt_image_folder.o: runtime/data/image/clt_image_folder.c \
  runtime/data/image/clt_image_folder.h runtime/base/clt_base.h \
  runtime/base/clt_env.h runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/base/clt_io.h runtime/base/clt_signal.h
runtime/data/image/clt_image_folder.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/base/clt_io.h:
runtime/base/clt_signal.h:
