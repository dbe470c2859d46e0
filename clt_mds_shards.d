clt_mds_shards.o: runtime/data/clt_mds_shards.c \
  runtime/data/clt_mds_shards.h runtime/base/clt_io.h \
  runtime/base/clt_base.h runtime/base/clt_env.h \
  runtime/base/clt_env.def runtime/base/clt_log.h \
  runtime/base/clt_memory.h runtime/base/clt_status.h \
  runtime/data/clt_fetch.h runtime/data/clt_mds_index.h \
  runtime/data/clt_codec.h runtime/data/clt_digest.h
runtime/data/clt_mds_shards.h:
runtime/base/clt_io.h:
runtime/base/clt_base.h:
runtime/base/clt_env.h:
runtime/base/clt_env.def:
runtime/base/clt_log.h:
runtime/base/clt_memory.h:
runtime/base/clt_status.h:
runtime/data/clt_fetch.h:
runtime/data/clt_mds_index.h:
runtime/data/clt_codec.h:
runtime/data/clt_digest.h:
