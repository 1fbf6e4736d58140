#!/bin/sh
# Takes the driver off the drive $1 and puts it back. NVMe's driver is built into the kernel, so
# this stands for unloading and loading its module: both end in the same remove and probe.
set -e
. /lib/wait-for.sh
LIMIT_S=120
case $1 in
/dev/nvme*)
    driver=/sys/bus/pci/drivers/nvme
    # The one PCI function that the driver has.
    device=$(basename $driver/*:*)
    ;;
/dev/vd*)
    driver=/sys/bus/virtio/drivers/virtio_blk
    device=$(basename "$(readlink -f "/sys/block/${1#/dev/}/device")")
    ;;
esac
echo "$device" >$driver/unbind
wait_for "the end of $1" $LIMIT_S "test ! -e $1"
# A drive gets its name back for certain only when nobody has the old one open.
wait_for "the end of fio, whose drive is gone" $LIMIT_S "! pidof fio"
echo "$device" >$driver/bind
wait_for "$1 after its driver's return" $LIMIT_S "opens $1"
