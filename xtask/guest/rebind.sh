#!/bin/sh
# Takes the NVMe driver off the drive and puts it back. The driver is built into the kernel, so
# this stands for unloading and loading its module: both end in the same remove and probe.
set -e
driver=/sys/bus/pci/drivers/nvme
device=$(basename "$(readlink -f /sys/class/nvme/nvme0/device)")
echo "$device" >$driver/unbind
test ! -e /dev/nvme0
echo "$device" >$driver/bind
tries=0
until test -b /dev/nvme0n1; do
    tries=$((tries + 1))
    test $tries -lt 100
    sleep 0.1
done
