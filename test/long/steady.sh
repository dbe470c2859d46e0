#!/bin/bash
# test/train/steady.sh complete: also on Intel's runtime, and every stage in both precisions.
# timeout: 3600
TEST_COMPLETE=1 exec bash "$(dirname "$0")/../train/steady.sh"
