#!/bin/bash
# test/train/group_mpi.sh complete: 1, 2, 3, 4 and 8 ranks over both transports, and 8 ranks on two and on four hosts.
# timeout: 1800
TEST_COMPLETE=1 exec bash "$(dirname "$0")/../train/group_mpi.sh"
