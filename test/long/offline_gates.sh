#!/bin/bash
# test/ops/offline_gates.sh complete: gfx942 compiles every row.
# timeout: 3600
TEST_COMPLETE=1 exec bash "$(dirname "$0")/../ops/offline_gates.sh"
