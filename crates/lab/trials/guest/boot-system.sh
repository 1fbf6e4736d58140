#!/bin/sh
# The guest's first process where it is to be a whole system: puts what the host brings, and what serves its commands,
# into the system on a drive, and makes way for that system's own first process. The drive's serial number is `system`,
# or what the kernel's command line has as `evenkeel.root`.
set -e
. /lib/wait-for.sh
LIMIT_S=120
serial=$(sed -n 's/.*evenkeel\.root=\([^ ]*\).*/\1/p' /proc/cmdline)
find_drive() {
    drive=/dev/$(grep -lw "${serial:-system}" /sys/block/*/serial /sys/block/*/device/serial | cut -d / -f 4)
    opens "$drive"
}
load-modules virtio_blk
wait_for "the system's drive" $LIMIT_S find_drive
# The system has no kernel, and so no modules.
load-modules ublk_drv irqbypass vfio vfio_iommu_type1 vfio-pci-core vfio-pci

mkdir /system
mount -t ext4 "$drive" /system
test ! -d /for-system || cp -r /for-system/. /system/
cp /lib/wait-for.sh /lib/agent.sh /system/usr/lib/
cp /usr/sbin/write-and-compare /system/usr/sbin/
units=/system/etc/systemd/system
printf '[Service]\nExecStart=/bin/sh /lib/agent.sh\n' >$units/agent.service
mkdir -p $units/multi-user.target.wants
ln -sf ../agent.service $units/multi-user.target.wants/agent.service
# Nobody logs in.
ln -sf /dev/null $units/getty.target
for folder in dev proc sys run; do
    mount -o move /$folder /system/$folder
done
exec switch_root /system /sbin/init
