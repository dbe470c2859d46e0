#include "runtime/object/clt_object.h"

#include <pthread.h>

#include "runtime/object/clt_http.h"
#include "runtime/object/clt_io_s3.h"
#include "runtime/object/clt_s3_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static clt_io_component *component; /* NULL: not registered */

clt_status clt_object_register(void) {
    clt_status st = CLT_OK;
    pthread_mutex_lock(&lock);
    if (!component) {
        clt_io_component *c = clt_io_s3_create();
        st = clt_io_register("s3", c);
        if (st == CLT_OK)
            component = c;
        else
            clt_io_s3_destroy(c);
    }
    pthread_mutex_unlock(&lock);
    return st;
}

void clt_object_unregister(void) {
    pthread_mutex_lock(&lock);
    if (component) clt_io_unregister("s3");
    clt_io_s3_destroy(component);
    component = NULL;
    pthread_mutex_unlock(&lock);
}

clt_object_totals clt_object_counted(void) {
    clt_http_totals h = clt_http_counted();
    return (clt_object_totals){h.requests, clt_s3_retries(), h.bytes_up, h.bytes_down, clt_s3_waited()};
}
