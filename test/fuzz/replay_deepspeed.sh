#!/bin/bash
# Mutations of DeepSpeed configurations on the whole way from hjson to clt_config and back (see fuzz_deepspeed.c).
"$BUILD"/test/fuzz/fuzz_deepspeed -n "${FUZZ_MUTATIONS:-1000}" test/golden/deepspeed/configs/{zero1-adamw-warmup,hjson,auto-hf}.json \
    test/fuzz/seeds/fuzz_deepspeed/*
