"""Writes the bodies of responses of two stores into FOLDER/seaweedfs and FOLDER/moto.

usage: capture.py FOLDER     AWS_ENDPOINT_URL and keys: a SeaweedFS; moto[server] is started here. Needs boto3
"""
import json
import os
import pathlib
import sys
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from moto.server import ThreadedMotoServer

KEYS = ["a/plain", "a/with space", "a/plus+and&and=", "a/per%cent%2F", "a/ünï/日本語", "a/<tag>&\"'", "a/tilde~star*(x)!", "a/sub/1",
        "a/sub/2"]


def ask(endpoint, method, path, query, body=b""):
    """The body of one signed request. boto3 would give a parsed one."""
    url = endpoint + quote(path, safe="/~") + "?" + "&".join(quote(k, safe="~") + "=" + quote(v, safe="~") for k, v in query)
    request = AWSRequest(method=method, url=url, data=body)
    S3SigV4Auth(boto3.Session().get_credentials().get_frozen_credentials(), "s3", "us-east-1").add_auth(request)
    headers = {**dict(request.headers), "Content-Type": "application/xml"}
    try:
        with urlopen(Request(url, method=method, data=body or None, headers=headers)) as r:
            return r.read()
    except HTTPError as e:
        return e.read()


def capture(endpoint, to):
    to.mkdir(parents=True, exist_ok=True)
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=Config(s3={"addressing_style": "path"}))
    s3.create_bucket(Bucket="golden")
    for key in KEYS:
        s3.put_object(Bucket="golden", Key=key, Body=key.encode())

    def keep(name, method, path, query, body=b""):
        text = ask(endpoint, method, path, query, body)
        (to / f"{name}.xml").write_bytes(text)
        return text.decode()

    encoded, prefix = [("list-type", "2"), ("encoding-type", "url")], [("prefix", "a/")]
    keep("list", "GET", "/golden", encoded + prefix)
    keep("list_plain", "GET", "/golden", encoded[:1] + prefix)
    keep("list_folders", "GET", "/golden", encoded + prefix + [("delimiter", "/")])
    keep("list_page", "GET", "/golden", encoded + prefix + [("max-keys", "2")])
    keep("list_empty", "GET", "/golden", encoded + [("prefix", "none/")])
    keep("no_key", "GET", "/golden/none", [])
    keep("no_bucket", "GET", "/nobucket", encoded)
    for key in KEYS[:4]:
        s3.create_multipart_upload(Bucket="golden", Key=key)
    keep("uploads", "GET", "/golden", [("uploads", "")] + prefix)
    text = keep("begin", "POST", "/golden/a/with space", [("uploads", "")])
    upload = text.split("<UploadId>")[1].split("<")[0]
    part = s3.upload_part(Bucket="golden", Key="a/with space", UploadId=upload, PartNumber=1, Body=b"x")
    parts = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{part['ETag']}</ETag></Part></CompleteMultipartUpload>"
    keep("complete", "POST", "/golden/a/with space", [("uploadId", upload)], parts.encode())
    keep("no_upload", "POST", "/golden/a/with space", [("uploadId", "0" * 32)], parts.encode())


def main():
    folder = pathlib.Path(sys.argv[1])
    capture(os.environ["AWS_ENDPOINT_URL"], folder / "seaweedfs")
    server = ThreadedMotoServer(port=0)
    server.start()
    capture("http://%s:%d" % server.get_host_and_port(), folder / "moto")
    server.stop()
    (folder / "keys.json").write_text(json.dumps(KEYS, ensure_ascii=False, indent=0) + "\n")


main()
