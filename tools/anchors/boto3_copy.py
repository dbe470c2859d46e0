"""boto3_copy.py get|put FOLDER PREFIX: copies a folder from or to a bucket of an object store with boto3's transfer
manager, for tools/bench_object.sh. The bucket is $TEST_BUCKET; AWS_* say where it is. Eight transfers at a time, parts of
16 MiB, as cltrain has them.
"""
import os
import pathlib
import sys


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("get", "put"):
        print(__doc__)
        return 0 if "--help" in sys.argv else 2
    try:
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config
        from s3transfer.manager import TransferManager
    except ImportError:
        print("this Python has no boto3 (pip install boto3)", file=sys.stderr)
        return 1
    folder, prefix, bucket = pathlib.Path(sys.argv[2]), sys.argv[3], os.environ["TEST_BUCKET"]
    s3 = boto3.client("s3", config=Config(max_pool_connections=16))
    config = TransferConfig(max_concurrency=8, multipart_chunksize=16 << 20, multipart_threshold=16 << 20)
    with TransferManager(s3, config) as manager:
        futures = []
        if sys.argv[1] == "put":
            for f in sorted(folder.rglob("*")):
                if f.is_file():
                    futures.append(manager.upload(str(f), bucket, f"{prefix}/{f.relative_to(folder)}"))
        else:
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/"):
                for o in page["Contents"]:
                    to = folder / o["Key"][len(prefix) + 1:]
                    to.parent.mkdir(parents=True, exist_ok=True)
                    futures.append(manager.download(bucket, o["Key"], str(to)))
        for f in futures:
            f.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
