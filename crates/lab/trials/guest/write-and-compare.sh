#!/bin/sh
# write-and-compare DEVICE
# Writes random data to the start of a block device and reads them back, both past the page cache.
set -e
dd if=/dev/urandom of=/run/written bs=64k count=8
dd if=/run/written of="$1" bs=64k oflag=direct conv=notrunc,nocreat
dd if="$1" of=/run/read bs=64k count=8 iflag=direct
cmp /run/written /run/read
