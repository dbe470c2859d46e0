#!/bin/bash
# Crash states of a save with all subsets of up to 11 changes that were not synced, and of more those with up to three
# missing or there: test/fault/test_crash_states.c builds some thousand of them in every run of the tests.
# timeout: 3600
CRASH_SUBSETS="11 3" exec "${BUILD:-build}/test/fault/test_crash_states"
