#!/bin/bash
# Builds the Debian packages, installs them into a new Debian system in a folder (debootstrap), and runs the
# demo and the C example there, without the source tree. Needs root, dpkg-dev, debhelper, debootstrap, and a
# mirror of Debian (DEB_MIRROR, default: the mirror of this machine).
# timeout: 3000
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
for p in dpkg-buildpackage dh debootstrap; do
    command -v $p >/dev/null || { echo "skipped: $p is not installed (packages dpkg-dev, debhelper, debootstrap)"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: a chroot needs root"; exit 0; }
mirror=${DEB_MIRROR:-$(apt-get --print-uris download hostname 2>/dev/null | sed -n "s|^'\(.*\)/pool/.*|\1|p")}
root=$tmp/root
trap 'umount "$root/sys" "$root/proc" 2>/dev/null; rm -rf --one-file-system "$tmp"' EXIT

make deb BUILD="$BUILD" >"$log" 2>&1
report "make deb" $?
[ $failed = 0 ] || exit 1
debootstrap --variant=minbase bookworm "$root" "${mirror:-http://deb.debian.org/debian}" >"$log" 2>&1
report "a fresh Debian" $?
[ $failed = 0 ] || exit 1
cp /etc/resolv.conf "$root/etc/" 2>/dev/null
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/" 2>/dev/null
mount -t proc proc "$root/proc" && mount -t sysfs -o ro sysfs "$root/sys" # PoCL counts the cores there
report "proc and sys are mounted" $?
cp "$BUILD"/deb/{cltrain_,libcltrain0_,libcltrain-dev_}*.deb "$root/tmp"
inside() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 bash -c "$1" >"$log" 2>&1; }
inside 'apt-get -q update; apt-get -q install -y --no-install-recommends /tmp/*.deb pocl-opencl-icd openmpi-bin gcc libc6-dev pkg-config'
report "the packages install" $?
[ $failed = 0 ] || exit 1
inside 'mkdir /demo && cd /demo && bash /usr/share/cltrain/demo/demo.sh'
report "the demo completes" $?
inside 'cd /demo && cc /usr/share/doc/libcltrain-dev/examples/train.c $(pkg-config --cflags --libs cltrain) -o train &&
    ./train demo/run.yaml max_duration=820ba scheduler.t_max=820ba | tail -n 3 | tee /dev/stderr | grep -q "loss on unseen text"'
report "train.c, built against libcltrain-dev, resumes the run" $?
inside 'apt-get -q remove -y cltrain libcltrain0 libcltrain-dev && [ -z "$(find /usr -name "*cltrain*")" ]'
report "removing the packages leaves no files" $?
exit $failed
