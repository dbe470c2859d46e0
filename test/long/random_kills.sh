#!/bin/bash
# 200 kills of a training run at random moments (test/fault/random_kills.sh).
# timeout: 7200
KILLS=${KILLS:-200} exec bash "$(dirname "$0")/../fault/random_kills.sh"
