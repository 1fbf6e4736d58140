#!/bin/sh
# Makes an ext4 on the drive $1, fills it with files of many sizes and leaves their checksums beside
# them; stays mounted on /mnt.
set -e
# By its path: busybox has a mke2fs too, and its shell prefers its own.
/usr/sbin/mke2fs -q -F -t ext4 "$1"
mount -t ext4 "$1" /mnt
mkdir /mnt/small /mnt/large
i=0
while [ $i -lt 200 ]; do
    head -c $((i * 97 + 1)) /dev/urandom >/mnt/small/$i
    i=$((i + 1))
done
for i in 1 2 3 4; do
    dd if=/dev/urandom of=/mnt/large/$i bs=1M count=8
done
# Files that come and go leave holes, journal traffic and discards behind them.
rm /mnt/small/1?
dd if=/dev/urandom of=/mnt/large/2 bs=1M count=4
cd /mnt
find small large -type f | sort | xargs sha256sum >/mnt/SHA256SUMS
cd /
sync
