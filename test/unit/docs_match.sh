#!/bin/bash
# docs/configuration.md is what the program's table of keys says.
exec tools/docs.sh "$BUILD/cltrain" --check
