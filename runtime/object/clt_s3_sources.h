/* clt_s3_sources: credentials from outside of files and environment: a program, or the metadata service of a
 * container or an instance. Internal to clt_s3_config. */
#ifndef CLT_S3_SOURCES_H
#define CLT_S3_SOURCES_H

#include "runtime/object/clt_s3_config.h"

/* Runs `command` in /bin/sh, at most 60 s, and reads the JSON that it prints (Version 1: AccessKeyId,
 * SecretAccessKey, SessionToken, Expiration; at most 64 KiB). CLT_BAD_CONFIG; its output is never shown. */
clt_status clt_s3_from_process(const char *command, clt_s3_credentials *out);
/* The same JSON from AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI, otherwise from the instance's
 * service (IMDSv2). No service, or an instance without a role: CLT_OK, and *out is unchanged. */
clt_status clt_s3_from_metadata(clt_s3_credentials *out);

#endif
