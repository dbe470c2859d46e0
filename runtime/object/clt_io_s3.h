/* clt_io_s3: the component of clt_io (clt_io_component.h) that serves buckets of one store.
 *
 * Reading: the file is one version of the object (ETag); ESTALE if it is replaced while it is open. Opening
 * brings the first 256 KiB, so a small file costs one request. Small reads are served from up to 1 MiB that
 * is read ahead; reads of 16 MiB and more use up to 4 connections.
 *
 * Writing: from the beginning to the end. Up to 16 MiB the file is a single PUT by close; a larger one is a
 * multipart upload, whose parts 8 threads of the process send while the caller goes on writing. Parts have
 * 16 MiB, from 24 GiB on 1/1500 of what was written before. Buffers of all files together have at most 144
 * MiB (16 MiB per thread and one part that is being filled), or one part per open file if that is more. close
 * publishes the object; after any failure it is unchanged and the upload is aborted. sync does nothing: only
 * close makes data survive. CLT_IO_CREATE_NEW asks whether the name exists, and close puts on the condition
 * that it does not.
 *
 * Names: keys whose components are not empty, "." or "..", without control characters; in lists others are
 * passed over. A folder is a prefix with "/" that something is below; an empty one is listed as empty. */
#ifndef CLT_IO_S3_H
#define CLT_IO_S3_H

#include "runtime/base/clt_io_component.h"

/* Never NULL. Nothing is read or asked before its first operation. The first operation decides the
 * configuration, in the context of its thread. */
clt_io_component *clt_io_s3_create(void);
/* Ends requests in progress with ECANCELED. Files and locks must be closed. NULL is allowed. */
void clt_io_s3_destroy(clt_io_component *c);

#endif
