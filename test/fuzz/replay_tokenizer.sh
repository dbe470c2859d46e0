#!/bin/bash
# Mutations of small tokenizers and of a text through the tokenizers (fuzz_tokenizer.c).
"$BUILD"/test/fuzz/fuzz_tokenizer -n "${FUZZ_MUTATIONS:-1500}" test/fuzz/seeds/fuzz_tokenizer/* &&
    "$BUILD"/test/fuzz/fuzz_tokenizer test/golden/tokenizer/*/tokenizer*.json
