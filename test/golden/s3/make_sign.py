"""Writes sign.json: requests and the authorization headers that botocore gives them."""
import json
import sys
from datetime import datetime, timezone
from unittest import mock

import botocore
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from urllib.parse import quote

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEYS = ["plain.bin", "with space.bin", "plus+and&and=.bin", "a//b", "folder/", "per%cent", "tilde~x", "star*x", "(brackets)!'",
        "ünïcødé/ß.txt", "日本語.mds", "emoji-\U0001F600", "at@colon:semi;comma,", "quo\"te", "back\\slash", "a/./b/../c", "dollar$",
        "hash#question?", "~!@$%^&*()_+-={}|[]"]
QUERIES = [[], [("list-type", "2"), ("prefix", "a/"), ("delimiter", "/")], [("uploads", "")], [("b", "2"), ("a", "1"), ("A", "3")],
           [("a", "x y"), ("a", "x+y"), ("a-b", "1"), ("a", "")], [("partNumber", "7"), ("uploadId", "2~AbC.d_e-f")],
           [("prefix", "ä/ö"), ("continuation-token", "1/w==")]]


class Clock(datetime):
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    @classmethod
    def utcnow(cls):
        return cls.at.replace(tzinfo=None)

    @classmethod
    def now(cls, tz=None):
        return cls.at if tz else cls.at.replace(tzinfo=None)


def case(method, host, key, query, token, region, body, headers):
    path = "/bucket/" + key
    url = "http://" + host + quote(path, safe="/~")
    if query:
        url += "?" + "&".join(quote(k, safe="~") + "=" + quote(v, safe="~") for k, v in query)
    request = AWSRequest(method=method, url=url, data=body.encode(), headers=dict(headers))
    auth = S3SigV4Auth(Credentials("AKIDEXAMPLE", SECRET, token), "s3", region)
    auth._should_sha256_sign_payload = lambda request: True
    request.context["payload_signing_enabled"] = True
    auth.add_auth(request)
    row = dict(method=method, host=host, path=path, query=query, session_token=token, region=region, headers=headers,
               payload_sha256=request.headers["X-Amz-Content-SHA256"], time=int(Clock.at.timestamp()),
               authorization=request.headers["Authorization"])
    if method == "GET" and not headers:
        request = AWSRequest(method="GET", url=url)
        S3SigV4QueryAuth(Credentials("AKIDEXAMPLE", SECRET, token), "s3", region, expires=3600).add_auth(request)
        row["presigned"] = request.url.rsplit("X-Amz-Signature=", 1)[1][:64]
    return row


def main():
    rows = []
    names = [m for m in ("botocore.compat.get_current_datetime", "botocore.auth.get_current_datetime") if patchable(m)]
    with mock.patch("botocore.auth.datetime", Clock, create=True):
        patches = [mock.patch(n, lambda remove_tzinfo=True: Clock.utcnow()) for n in names]
        for p in patches:
            p.start()
        for key in KEYS:
            rows.append(case("GET", "127.0.0.1:9000", key, [], None, "us-east-1", "", []))
            rows.append(case("PUT", "store.example.com", key, [], "token/with+signs==", "eu-west-3", "body of " + key, []))
        for query in QUERIES:
            rows.append(case("GET", "store.example.com", "k", query, None, "us-east-1", "", []))
            rows.append(case("POST", "store.example.com:8333", "k", query, "t", "r", "x", []))
        rows.append(case("GET", "store.example.com", "k", [], None, "us-east-1", "", [["range", "bytes=0-9"], ["if-match", '"abc"']]))
        rows.append(case("PUT", "store.example.com", "k", [], None, "us-east-1", "z",
                         [["x-amz-meta-b", "  two   spaces "], ["x-amz-meta", "1"], ["x-amz-meta-a", "é"], ["if-none-match", "*"]]))
    json.dump(dict(botocore=botocore.__version__, secret_key=SECRET, access_key="AKIDEXAMPLE", cases=rows),
              open(sys.argv[1], "w"), indent=0, sort_keys=True)


def patchable(name):
    module, _, attribute = name.rpartition(".")
    return hasattr(sys.modules.get(module), attribute)


main()
