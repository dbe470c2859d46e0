#!/bin/bash
# Mutations of real configurations through everything that reads one (see fuzz_yaml.c).
"$BUILD"/test/fuzz/fuzz_yaml -n "${FUZZ_MUTATIONS:-1500}" test/golden/e2e/train.yaml test/golden/mpt-rope/train.yaml
