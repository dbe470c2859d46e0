/* clt_s3_sources: credentials from outside of files and environment: a program, or the metadata service of a
 * container or an instance. Internal to clt_s3_config. */
#ifndef CLT_S3_SOURCES_H
#define CLT_S3_SOURCES_H

#include "runtime/object/clt_s3_config.h"

/* Runs `command` in /bin/sh, at most `seconds`, and reads the JSON that it prints (Version 1: AccessKeyId,
 * SecretAccessKey, SessionToken, Expiration; at most 64 KiB). CLT_BAD_CONFIG; CLT_STOPPED after a request to
 * stop, if this thread heeds those (clt_io.h). What it prints on either output is never shown. */
clt_status clt_s3_from_process(const char *command, double seconds, clt_s3_credentials *out);
/* The same JSON from AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI, with the authorization of
 * AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE or _TOKEN; otherwise from the instance's service (IMDSv2) at
 * AWS_EC2_METADATA_SERVICE_ENDPOINT, unless AWS_EC2_METADATA_DISABLED is true. Status 5xx and broken
 * connections are repeated twice. No service of an instance, or an instance without a role: CLT_OK, and *out
 * is unchanged. CLT_BAD_CONFIG also if a service gives none, or if a token would go to another host
 * unencrypted. CLT_IO: the file of the token. */
clt_status clt_s3_from_metadata(clt_s3_credentials *out);

/* Overwrites the secrets with zeros and frees them; *c is then without credentials. */
void clt_s3_credentials_free(clt_s3_credentials *c);
/* Whether text is printable ASCII without spaces, so that it cannot end a header or a URL. */
bool clt_s3_is_printable(const char *text);
/* Whether `host`, without port and brackets, is this machine. */
bool clt_s3_is_loopback(const char *host);
/* The host of "SCHEME://HOST[:PORT][/...]", without the brackets of IPv6; to be freed with clt_free. */
char *clt_s3_host_of(const char *url);

#endif
