clt_image_png.o: runtime/data/image/clt_image_png.c \
  runtime/data/image/clt_image.h runtime/base/clt_base.h \
  runtime/base/clt_env.h runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  /usr/include/libpng16/png.h /usr/include/libpng16/pnglibconf.h \
  /usr/include/libpng16/pngconf.h
runtime/data/image/clt_image.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
/usr/include/libpng16/png.h:
/usr/include/libpng16/pnglibconf.h:
/usr/include/libpng16/pngconf.h:
