#!/bin/bash
# test/fuzz/replay_pickle.sh with a hundred times as many mutations.
# timeout: 3600
FUZZ_MUTATIONS=${FUZZ_MUTATIONS:-150000} exec bash "$(dirname "$0")/../fuzz/replay_pickle.sh"
