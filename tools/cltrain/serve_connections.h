/* serve_connections: the open connections of `cltrain serve`, and a thread that ends those of clients that
 * are too slow. A client has a limited time for a whole request, headers included, however it spreads the
 * bytes, and again for taking the answer. Beyond a limit, the client that has been slow for the longest gives
 * way to new ones. */
#ifndef SERVE_CONNECTIONS_H
#define SERVE_CONNECTIONS_H

#include "runtime/base/clt_base.h"

typedef struct serve_connections serve_connections;
typedef struct serve_connection serve_connection;

/* What a connection is doing. */
typedef enum {
    SERVE_READING,   /* the client sends a request, or is silent between two */
    SERVE_ANSWERING, /* the client waits for the model; time is not limited here */
    SERVE_SENDING,   /* the client receives the answer */
} serve_phase;

/* limit: connections without one giving way; seconds: for reading a request, and for sending its answer.
 * CLT_FAIL: no thread can be started. */
clt_status serve_connections_start(int64_t limit, double seconds, serve_connections **out);
/* Waits a moment for answers that are being sent. */
void serve_connections_drain(serve_connections *all);
/* Every connection was removed; NULL is allowed. */
void serve_connections_stop(serve_connections *all);

/* A connection that was accepted: it reads. The socket stays the caller's and is open until the removal. */
serve_connection *serve_connection_add(serve_connections *all, int socket);
void serve_connection_remove(serve_connections *all, serve_connection *c);
void serve_connection_enter(serve_connections *all, serve_connection *c, serve_phase phase);

/* Whether nobody waits for the answer: the client has closed its socket. One that only ends its sending side
 * cannot be told from one that is gone, and is answered if that takes a few seconds at most. */
bool serve_connection_is_gone(serve_connection *c);

#endif
