#!/bin/sh
# debian/changelog of VERSION, from CHANGELOG.md's section of it.
#   tools/debian/changelog.sh VERSION
set -eu
version=$1
cd "$(dirname "$0")/../.."
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
printf 'cltrain (%s) unstable; urgency=medium\n\n  * CHANGELOG.md says what is new.\n\n -- cltrain maintainers <maintainers@users.noreply.example>  %s\n' \
    "$version" "$date"
