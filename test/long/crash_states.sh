#!/bin/bash
# test/fault/test_crash_states.c with more crash states: all subsets of up to 11 changes that were not synced;
# of more changes the subsets with up to three missing or present. The normal tests check some thousand
# states.
# timeout: 3600
CRASH_SUBSETS="11 3" exec "${BUILD:-build}/test/fault/test_crash_states"
