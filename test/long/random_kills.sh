#!/bin/bash
# test/fault/random_kills.sh with 200 kills.
# timeout: 7200
KILLS=${KILLS:-200} exec bash "$(dirname "$0")/../fault/random_kills.sh"
