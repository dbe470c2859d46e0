#!/bin/bash
# A hundred times the mutations of test/fuzz/replay_checkpoint.sh.
# timeout: 3600
FUZZ_MUTATIONS=${FUZZ_MUTATIONS:-150000} exec bash "$(dirname "$0")/../fuzz/replay_checkpoint.sh"
