/* clt_s3_config: where a bucket is, and the credentials for it, as the AWS tools find them.
 *
 * Credentials, the first source that has any: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (with
 * AWS_SESSION_TOKEN); the profile AWS_PROFILE (default "default") in AWS_SHARED_CREDENTIALS_FILE
 * (~/.aws/credentials), then in AWS_CONFIG_FILE (~/.aws/config, "[profile NAME]"), then its
 * credential_process. A profile with sso_*, role_arn or source_profile is refused unless the environment has
 * keys: what the AWS tools would get with it needs them. Metadata of containers
 * (AWS_CONTAINER_CREDENTIALS_FULL_URI, _RELATIVE_URI) and instances (IMDSv2) are asked only if
 * CLTRAIN_S3_METADATA is 1. Without credentials requests are unsigned, for public buckets; but
 * AWS_WEB_IDENTITY_TOKEN_FILE without any is refused. Endpoint: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
 * S3_ENDPOINT_URL (as mosaicml-streaming reads it), the profile's endpoint_url; default
 * https://s3.REGION.amazonaws.com. Region: AWS_REGION, AWS_DEFAULT_REGION, the profile's region, us-east-1.
 * Path style (ENDPOINT/BUCKET/KEY) when an endpoint is given, else virtual-host style (BUCKET.ENDPOINT/KEY);
 * CLTRAIN_S3_STYLE=path|virtual decides otherwise. A bucket with a dot in its name has path style over https,
 * because the certificate of *.ENDPOINT does not cover it. Plain http is refused except to loopback addresses
 * and localhost, unless CLTRAIN_S3_INSECURE names the host. */
#ifndef CLT_S3_CONFIG_H
#define CLT_S3_CONFIG_H

#include "runtime/base/clt_base.h"

typedef struct {
    char *access_key, *secret_key, *session_token; /* NULL: unsigned; no session */
    double expires; /* seconds since 1970 when the credentials end; INFINITY: never */
    char *source;   /* "environment", "~/.aws/credentials [default]", ...; for messages, no secret */
} clt_s3_credentials;

typedef struct {
    char *endpoint; /* "https://host[:port]", without a path and without a trailing slash */
    char *region;
    bool path_style;
    clt_s3_credentials credentials;
} clt_s3_config;

/* Reads everything above. Prints and returns CLT_BAD_CONFIG naming variable or FILE:LINE (never the value of
 * a secret) for what is malformed or unsupported: half a pair of keys, an unknown profile that was asked for,
 * one that logs in or assumes a role, an endpoint that is no URL or plain http to another host, a
 * credential_process that fails or prints no valid JSON. *out is freed with clt_s3_config_free, which
 * overwrites the secrets with zeros first. CLT_STOPPED: a request to stop came while a program was waited for
 * (clt_io_heed_stop). */
clt_status clt_s3_config_read(clt_s3_config *out);
void clt_s3_config_free(clt_s3_config *c);
/* Gets the credentials again from their source: temporary ones change in their file, or a process makes new
 * ones. The old ones stay when that fails, also when the source has none any more. */
clt_status clt_s3_config_refresh(clt_s3_config *c);
/* "https://s3.eu-west-1.amazonaws.com, region eu-west-1, virtual-host style, credentials from environment
 * (AKIA...WXYZ)": without secrets; of the access key at most the first and last four characters, and those
 * only if it has at least 16. To be freed with clt_free. */
char *clt_s3_config_describe(const clt_s3_config *c);

/* --- an INI file as the AWS tools write it --- */

/* Gets one key of a section; another status than CLT_OK ends the parse and is returned. */
typedef clt_status (*clt_ini_fn)(void *ctx, const char *section, const char *key, const char *value,
                                 int line);
/* Calls `each` for every key of `text` (bytes long, hostile, at most 1 MiB). `file` is for messages. Indented
 * lines below a key without a value belong to it and are skipped. */
clt_status clt_ini_parse(const char *file, const char *text, size_t bytes, clt_ini_fn each, void *ctx);

#endif
