#!/bin/bash
# Installs what building and running cltrain needs and this machine lacks (Debian, Ubuntu). Silent when nothing is
# missing.
#   tools/setup.sh           what the build, the demo and a CPU device need
#   tools/setup.sh --check   also what the tests can use; what cannot be had there is named and left out
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}

needed=(gcc libc6-dev make pkg-config libjansson-dev libyaml-dev libxxhash-dev libzstd-dev libssl-dev
    ocl-icd-opencl-dev pocl-opencl-icd libopenmpi-dev openmpi-bin libcmocka-dev)
# The compilers are for the offline checks of the kernels on targets that are not here; ocloc is in intel-opencl-icd.
wanted=(oclgrind clang-19 llvm-19 lld-19 rocm-device-libs intel-opencl-icd python3 python3-venv strace
    libopenblas0-pthread libclblast1 shellcheck procps zstd iproute2)
intel_packages=(intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0)

say() { echo "setup: $*" >&2; }

# The packages of a list that dpkg does not know as installed.
missing() {
    local have p
    have=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 2>/dev/null | sed -n 's/^ii  *//p')
    for p in "$@"; do
        grep -qx -- "$p" <<<"$have" || echo "$p"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        say "not root and no sudo: cannot run $*"
        return 1
    fi
}

updated=0
apt_update() {
    [ $updated = 1 ] && return 0
    say "reading the package lists (apt-get update)"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >&2 && updated=1
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" \
        >"$BUILD/setup.log" 2>&1
}

known() { apt-cache show "$1" >/dev/null 2>&1; }

install_needed() {
    local list=() p
    for p in $(missing "${needed[@]}"); do
        # A compiler, make or pkg-config that came another way is as good.
        case $p in gcc | make | pkg-config) command -v "$p" >/dev/null && continue ;; esac
        list+=("$p")
    done
    [ ${#list[@]} = 0 ] && return 0
    command -v apt-get >/dev/null || {
        say "no apt-get here. Install by hand what these Debian packages hold: ${list[*]}"
        return 1
    }
    mkdir -p "$BUILD"
    say "installing ${list[*]}"
    for p in "${list[@]}"; do
        known "$p" && continue
        apt_update || return 1
        break
    done
    apt_install "${list[@]}" && return 0
    apt_update && apt_install "${list[@]}" && return 0
    tail -n 20 "$BUILD/setup.log" >&2
    say "apt-get could not install: ${list[*]}"
    return 1
}

# What could not be had is remembered, so that it is not asked for again and again.
give_up_on() {
    say "$1 $2: what needs it is left out"
    echo "$1" >>"$BUILD/setup-absent"
}

install_wanted() {
    local list=() p
    for p in $(missing "${wanted[@]}"); do
        [ "$p" = python3 ] && command -v python3 >/dev/null && continue
        [ "$p" = shellcheck ] && command -v shellcheck >/dev/null && continue
        [ -f "$BUILD/setup-absent" ] && grep -qx -- "$p" "$BUILD/setup-absent" && continue
        list+=("$p")
    done
    [ ${#list[@]} = 0 ] && return 0
    command -v apt-get >/dev/null || return 0
    mkdir -p "$BUILD"
    for p in "${list[@]}"; do
        known "$p" && continue
        apt_update
        break
    done
    for p in "${!list[@]}"; do
        known "${list[$p]}" && continue
        give_up_on "${list[$p]}" "is not in this system's package lists"
        unset "list[$p]"
    done
    [ ${#list[@]} = 0 ] && return 0
    say "installing for the tests: ${list[*]}"
    apt_install "${list[@]}" && return 0
    apt_update
    for p in "${list[@]}"; do apt_install "$p" || give_up_on "$p" "could not be installed"; done
}

# A folder with the drivers that this machine has and Intel's for CPUs. The system's intel.icd is the one for GPUs.
register_intel() {
    local f name
    mkdir -p "$BUILD/intel/icd"
    for f in /etc/OpenCL/vendors/*.icd; do
        name=$(basename "$f")
        [ "$name" = intel.icd ] && name=intel-gpu.icd
        [ -f "$f" ] && cp "$f" "$BUILD/intel/icd/$name"
    done
    echo "$1" >"$BUILD/intel/icd/intel.icd"
}

# A second vendor's runtime for the same CPU: Intel's, from PyPI, into the build folder. It is not redistributed.
install_intel() {
    local venv=$BUILD/intel/V lib
    [ -f "$BUILD/intel/icd/intel.icd" ] && [ -f "$(cat "$BUILD/intel/icd/intel.icd")" ] && return 0
    [ -f "$BUILD/intel/absent" ] && return 0
    [ "$(uname -m)" = x86_64 ] || return 0
    mkdir -p "$BUILD/intel"
    rm -rf "$BUILD/intel/icd"
    say "fetching Intel's OpenCL runtime for CPUs into $BUILD/intel (about 0.8 GB)"
    if python3 -m venv "$venv" >"$BUILD/intel/log" 2>&1 &&
        "$venv/bin/pip" install -q --disable-pip-version-check "${intel_packages[@]}" >>"$BUILD/intel/log" 2>&1 &&
        lib=$(find "$venv" -name libintelocl.so | head -n 1) && [ -n "$lib" ]; then
        register_intel "$(readlink -f "$lib")"
        return 0
    fi
    tail -n 3 "$BUILD/intel/log" >&2
    say "Intel's runtime cannot be had here: the tests use PoCL alone (remove $BUILD/intel/absent to try again)"
    : >"$BUILD/intel/absent"
}

install_needed || exit 1
if [ "${1:-}" = --check ]; then
    install_wanted
    install_intel
fi
exit 0
