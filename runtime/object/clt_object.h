/* clt_object: makes s3:// a kind of storage of this process. After clt_object_register every function of
 * clt_io takes s3://BUCKET/KEY: reads are ranged GETs; a file that is created is uploaded in parts while it
 * is written and appears when it is closed; a lock is an object with an expiry time (clt_io.h). Nothing is
 * asked of a store, and no credentials are read, before the first operation on an s3:// path. */
#ifndef CLT_OBJECT_H
#define CLT_OBJECT_H

#include "runtime/base/clt_base.h"

/* Registers the component for "s3". Built with CURL=0 it registers nothing. CLT_OK if it was done before. */
clt_status clt_object_register(void);
/* Ends requests in progress, releases connections; for the end of a process and for tests. */
void clt_object_unregister(void);

typedef struct {
    uint64_t requests, retries, bytes_up, bytes_down;
    double seconds_waited; /* between attempts */
} clt_object_totals;
clt_object_totals clt_object_counted(void); /* zeros with CURL=0 */

#endif
