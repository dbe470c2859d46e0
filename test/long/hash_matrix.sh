#!/bin/bash
# test/train/hash_matrix.sh complete: every pair of settings, and a stop after each of 20 steps.
# timeout: 3600
TEST_COMPLETE=1 exec bash "$(dirname "$0")/../train/hash_matrix.sh"
