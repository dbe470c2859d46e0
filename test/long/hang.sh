#!/bin/bash
# test/fault/hang.sh with all of its cases.
# timeout: 300
LONG=1 exec bash "$(dirname "$0")/../fault/hang.sh"
