#!/bin/sh
# The guest's first process: mounts what programs expect, then serves commands from the host.
# Where the kernel's command line has `evenkeel.system`, that is left to the system on a drive.

/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
if grep -qw evenkeel.system /proc/cmdline; then
    exec boot-system
fi
load-modules virtio_blk
. /lib/agent.sh
