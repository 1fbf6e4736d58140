#!/bin/sh
# Copies /tmp/data to the drive block by block; /run/acknowledged counts the blocks whose writes
# have completed.
set -e
blocks=$(($(wc -c </tmp/data) / 4096))
block=0
while [ $block -lt $blocks ]; do
    dd if=/tmp/data of=/dev/nvme0n1 bs=4k count=1 skip=$block seek=$block oflag=direct
    block=$((block + 1))
    echo $block >/run/acknowledged.new
    mv /run/acknowledged.new /run/acknowledged
done
