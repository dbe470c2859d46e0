#!/bin/bash
# 64-bit ARM: the program built for it runs on PoCL for ARM, its machine code on an emulator (qemu). Weights and optimizer
# state in fp32 and in exact8 have the hash of this machine, also where a run stops here and goes on there, and the
# reverse; the rows of 8-bit products for ARM equal the oracle. What it cannot show: speed.
# Needs root, debootstrap, qemu-user-static, gcc-aarch64-linux-gnu and a mirror of Debian (DEB_MIRROR, default: the mirror
# of this machine). The folder of the ARM system, 0.9 GB, stays in $BUILD/aarch64.
# timeout: 3000
# no sanitizer: the program is built for another architecture
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
for p in debootstrap qemu-aarch64-static aarch64-linux-gnu-gcc; do
    command -v $p >/dev/null || { echo "skipped: $p is not installed (packages debootstrap, qemu-user-static, gcc-aarch64-linux-gnu)"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: a chroot needs root"; exit 0; }
# What is mounted below is seen by this process and its children only.
[ "${1:-}" = mounts ] || { rm -rf "$tmp" && exec unshare -m bash "$0" mounts; }
arm=$BUILD/aarch64 root=$BUILD/aarch64/root formats=/proc/sys/fs/binfmt_misc
mirror=${DEB_MIRROR:-$(apt-get --print-uris download hostname 2>/dev/null | sed -n "s|^'\(.*\)/pool/.*|\1|p")}

# --- an ARM system in a folder: packages are unpacked only, their scripts do not run ---
if [ ! -f "$arm/complete" ]; then
    rm -rf "$arm" && mkdir -p "$arm"
    packages=$(sed -n '/^needed=(/,/)$/p' tools/setup.sh | tr -d '()' | sed 's/needed=//' | tr -s ' \n' '\n' | grep -vxE 'gcc|make|perl|pkg-config' | paste -sd,)
    debootstrap --foreign --arch=arm64 --variant=minbase --include="libgcc-12-dev,binutils,$packages" bookworm "$root" "${mirror:-http://deb.debian.org/debian}" >"$log" 2>&1 &&
        for p in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$p" "$root" || exit 1; done && rm "$root"/var/cache/apt/archives/*.deb && touch "$arm/complete"
    report "an ARM system" $?
    [ $failed = 0 ] || exit 1
fi
libs=$root/usr/lib/aarch64-linux-gnu
PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$libs/pkgconfig:$root/usr/share/pkgconfig make -s -j"$(nproc)" BUILD="$arm/build" \
    CC="aarch64-linux-gnu-gcc --sysroot=$root" HOSTCC=gcc MPI_CFLAGS="-I$libs/openmpi/include" MPI_LIBS=-l:libmpi.so.40 \
    "$arm/build/cltrain" "$arm/build/test/ops/test_gemm8" >"$log" 2>&1
report "the program for ARM" $?
[ $failed = 0 ] || exit 1

# --- programs of the folder run on the emulator ---
[ -e $formats/register ] || mount -t binfmt_misc none $formats
if ! cat $formats/qemu-aarch64 $formats/cltrain-aarch64 2>/dev/null | grep -q '^flags:.*F'; then
    echo ':cltrain-aarch64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:FP' \
        >$formats/register
    trap '[ $BASHPID != $$ ] || { echo -1 >$formats/cltrain-aarch64; rm -rf "$tmp"; }' EXIT
fi
for folder in /proc /sys /dev "$arm/build" "$golden" "$tmp"; do mkdir -p "$root$folder" && mount --bind "$folder" "$root$folder" || exit 1; done
on_arm() {
    chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME="$arm/build" TMPDIR="$tmp" CLTRAIN_CACHE_DIR="$arm/build/cache" \
        POCL_CACHE_DIR="$arm/build/pocl" "$@"
}
[ "$(on_arm uname -m)" = aarch64 ]
report "programs for ARM run" $?
[ $failed = 0 ] || exit 1

# train here|there FOLDER PRECISION KEYS...
train() {
    local where=("$cltrain") folder=$2 precision=$3
    [ "$1" = here ] || where=(on_arm "$arm/build/cltrain")
    shift 3
    "${where[@]}" train "$golden/e2e/train.yaml" --device portable max_duration=4ba eval_interval=0 load_path="$golden/e2e/hf" \
        {train,eval}_loader.dataset.local="$golden/e2e/mds" precision="$precision" save_folder="$tmp/$folder" "$@" >>"$log" 2>&1
}
stops() { # a train that stops after two batches
    train "$@" --stop-after 2ba
    [ $? = 75 ]
}
want=
for precision in fp32 exact8; do
    : >"$log"
    train here straight $precision && want=$("$cltrain" ckpt hash "$tmp/straight") && rm -rf "$tmp/straight"
    report "$precision, here" $?
    train there run $precision
    same_hash "$precision, all on ARM" run
    stops here run $precision && train there run $precision
    same_hash "$precision, stopped here, resumed on ARM" run
    stops there run $precision && train here run $precision
    same_hash "$precision, stopped on ARM, resumed here" run
done
on_arm "$arm/build/test/ops/test_gemm8" >"$log" 2>&1 && grep -q "gemm8=cpu_dotprod on" "$log"
report "products of 8-bit blocks on ARM, with the row for dotprod" $?
finish
