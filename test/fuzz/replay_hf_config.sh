#!/bin/bash
# Mutations of real config.json files on the way to a model's configuration and weight map (see fuzz_hf_config.c).
"$BUILD"/test/fuzz/fuzz_hf_config -n "${FUZZ_MUTATIONS:-1500}" test/golden/families/*/hf/config.json test/golden/vit/timm/config.json
