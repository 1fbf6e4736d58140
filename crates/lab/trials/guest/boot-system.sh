#!/bin/sh
# The guest's first process where it is to be a whole system: puts what the host brings, and what serves its commands,
# into the system on the drive with the serial number `system`, and makes way for that system's own first process.
set -e
. /lib/wait-for.sh
LIMIT_S=120
find_drive() {
    drive=/dev/$(basename "$(dirname "$(grep -lw system /sys/class/nvme/*/serial)")")n1
    opens "$drive"
}
wait_for "the system's drive" $LIMIT_S find_drive
# The system has no kernel, and so no modules.
load-modules ublk_drv irqbypass vfio vfio_iommu_type1 vfio-pci-core vfio-pci

mkdir /system
mount -t ext4 "$drive" /system
cp -r /for-system/. /system/
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
