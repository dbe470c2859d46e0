#!/bin/bash
# test/train/offload.sh complete: every stage of sharding with 16-bit weights, too.
# timeout: 1800
TEST_COMPLETE=1 exec bash "$(dirname "$0")/../train/offload.sh"
