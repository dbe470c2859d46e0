#!/bin/bash
# Mutations of real configurations on the whole way from text to clt_config and back (see fuzz_yaml.c).
"$BUILD"/test/fuzz/fuzz_yaml -n "${FUZZ_MUTATIONS:-1500}" test/golden/e2e/train.yaml test/golden/mpt-rope/train.yaml \
    test/fuzz/seeds/fuzz_yaml/*
