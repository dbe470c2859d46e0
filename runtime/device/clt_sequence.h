/* clt_sequence: launches that are repeated with the same arguments, as every next token of a text repeats
 * those of the one before. Finding kernels and setting arguments takes longer than a small kernel runs; a
 * sequence does it once and then only queues.
 *
 *     CLT_TRY(clt_sequence_begin(dev));
 *     ... launches, which are queued as usual ...
 *     CLT_TRY(clt_sequence_end(dev, &s));
 *     CLT_TRY(clt_sequence_run(s)); // queues them again
 *
 * Only launches are noted. Writes, fills, copies and reads between begin and end are done and not noted. */
#ifndef CLT_SEQUENCE_H
#define CLT_SEQUENCE_H

#include "runtime/device/clt_device.h"

typedef struct clt_sequence clt_sequence;

/* Notes the device's launches from here on. CLT_FAIL: it does so already. */
clt_status clt_sequence_begin(clt_device *dev);
/* Ends that. *out is to be freed before the device is closed; NULL if launches cannot be repeated here (they
 * are recorded or rehearsed, or the driver refused a second kernel object). */
clt_status clt_sequence_end(clt_device *dev, clt_sequence **out);
/* Whether the sequence can run: no buffer of the device was destroyed since it was noted. */
bool clt_sequence_is_current(const clt_sequence *s);
/* Queues its launches. It must be current. */
clt_status clt_sequence_run(clt_sequence *s);
void clt_sequence_free(clt_sequence *s); /* NULL is allowed */

#endif
