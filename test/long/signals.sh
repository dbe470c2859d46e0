#!/bin/bash
# test/fault/signals.sh with 50 signals.
# timeout: 900
COUNT=${COUNT:-50} exec bash "$(dirname "$0")/../fault/signals.sh"
