#!/bin/bash
# clt_io on a real object store, and the objects as another client (boto3) sees them.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start
"$BUILD/test/object/test_io_s3" >"$tmp/log" 2>&1
report test_io_s3 $?
exit $failed
