/* fake_server: an HTTP server on loopback that answers what a test scripts, byte by byte, and keeps what it
 * was asked. Each request, on whatever connection, takes the next step of the script; after the last one it
 * closes connections without a response. */
#ifndef FAKE_SERVER_H
#define FAKE_SERVER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *reply; /* head and body, sent as they are; NULL: none. "%D" in it becomes the time now + skew,
                        * "%W" the last x-amz-meta-cltrain-writer that was sent; neither with `bytes` */
    size_t bytes;      /* of `reply`, 0: strlen */
    size_t cut;        /* sends only this many, then resets the connection; 0: all */
    double delay;      /* seconds before the reply */
    int skew;          /* seconds */
    bool ends;         /* closes the connection afterwards, without a reset */
    bool early;        /* replies without reading the body, and resets the connection */
} fake_step;

typedef struct fake_server fake_server;

fake_server *fake_start(const fake_step *steps, size_t n); /* steps are borrowed */
const char *fake_url(const fake_server *s);                /* "http://127.0.0.1:PORT" */
/* Request i, from 0: its head, then its body; NULL: there was none. Valid until fake_stop. */
const char *fake_request(fake_server *s, size_t i);
size_t fake_body(fake_server *s, size_t i, const char **body);
size_t fake_requests(fake_server *s);
size_t fake_connections(fake_server *s);
void fake_stop(fake_server *s);

#endif
