/* clt_event_file: records of TensorBoard's event files. A record is a length, its checksum, a protocol buffer
 * `Event` and its checksum; sources: tensorboard/compat/proto/{event,summary}.proto and TensorFlow's
 * description of TFRecord. Only what scalars need is written. */
#ifndef CLT_EVENT_FILE_H
#define CLT_EVENT_FILE_H

#include "runtime/train/sink/clt_metrics.h"

/* CRC-32C (Castagnoli), RFC 3720 appendix B.4. */
uint32_t clt_crc32c(const void *data, size_t bytes);

/* Each appends one record. wall_time: seconds since 1970. */
/* The first record of a file. */
void clt_event_add_version(clt_str *out, double wall_time);
/* The start of a process, after which readers drop points of earlier files from this step on. */
void clt_event_add_start(clt_str *out, double wall_time, int64_t step);
/* All metrics as scalars in one record. */
void clt_event_add_scalars(clt_str *out, double wall_time, int64_t step, const clt_metrics *m);

#endif
