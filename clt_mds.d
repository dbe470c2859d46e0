clt_mds.o: runtime/data/clt_mds.c runtime/data/clt_mds.h \
  runtime/base/clt_base.h runtime/base/clt_env.h \
  runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/data/clt_fetch.h runtime/data/clt_mds_index.h \
  runtime/base/clt_io.h runtime/data/clt_codec.h \
  runtime/base/clt_signal.h runtime/data/clt_digest.h \
  runtime/data/clt_mds_shards.h runtime/data/clt_utf8.h
runtime/data/clt_mds.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/data/clt_fetch.h:
runtime/data/clt_mds_index.h:
runtime/base/clt_io.h:
runtime/data/clt_codec.h:
runtime/base/clt_signal.h:
runtime/data/clt_digest.h:
runtime/data/clt_mds_shards.h:
runtime/data/clt_utf8.h:
