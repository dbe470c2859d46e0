#!/bin/bash
# Mutations of files that DeepSpeed wrote, and of their pickles, through the readers of PyTorch's files (fuzz_pickle.c).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
n=${FUZZ_MUTATIONS:-1500}
golden=test/golden/deepspeed/universal
"$BUILD"/test/fuzz/fuzz_pickle -n "$((n * 5))" test/fuzz/seeds/fuzz_pickle/*
"$BUILD"/test/fuzz/fuzz_pickle -n "$n" $golden/*/*/zero/fc1.bias/*.pt $golden/*/*/zero/optimizer_state.pt $golden/*/*/*.pt
