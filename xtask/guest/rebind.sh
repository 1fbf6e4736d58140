#!/bin/sh
# Takes the driver off the drive $1 and puts it back. NVMe's driver is built into the kernel, so
# this stands for unloading and loading its module: both end in the same remove and probe.
set -e
case $1 in
/dev/nvme*)
    driver=/sys/bus/pci/drivers/nvme
    device=$(basename "$(readlink -f /sys/class/nvme/nvme0/device)")
    ;;
/dev/vd*)
    driver=/sys/bus/virtio/drivers/virtio_blk
    device=$(basename "$(readlink -f "/sys/block/${1#/dev/}/device")")
    ;;
esac
echo "$device" >$driver/unbind
test ! -e "$1"
# A virtio disk gets its name back only when nobody has the old one open.
tries=0
while [ "$driver" = /sys/bus/virtio/drivers/virtio_blk ] && pidof fio >/dev/null; do
    tries=$((tries + 1))
    test $tries -lt 300
    sleep 0.1
done
echo "$device" >$driver/bind
tries=0
until test -b "$1"; do
    tries=$((tries + 1))
    test $tries -lt 100
    sleep 0.1
done
