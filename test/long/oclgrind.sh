#!/bin/bash
# test/ops/oclgrind.sh complete: both runs of every program take all rows.
# no sanitizer: Oclgrind preloads a library before the sanitizer's
# timeout: 7200
TEST_COMPLETE=1 exec bash "$(dirname "$0")/../ops/oclgrind.sh"
