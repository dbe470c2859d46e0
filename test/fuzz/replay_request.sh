#!/bin/bash
# Mutations of requests for completions (see fuzz_request.c).
"$BUILD"/test/fuzz/fuzz_request -n "${FUZZ_MUTATIONS:-1500}" test/fuzz/seeds/fuzz_request/*
