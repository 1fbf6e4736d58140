#!/bin/sh
# container DATA COMMAND...
# Runs a command with processes, mounts and a root folder of its own. Of the host it sees the programs, and the folder
# DATA as /data.
set -e
if [ $$ != 1 ]; then
    exec unshare -m -p -f "$0" "$@"
fi
root=/run/container
mkdir -p $root
mount -t tmpfs tmpfs $root
for folder in bin lib lib64 usr dev; do
    mkdir $root/$folder
    mount -o bind /$folder $root/$folder
done
mkdir $root/data $root/proc $root/tmp
mount -o bind "$1" $root/data
mount -t proc proc $root/proc
shift
exec chroot $root "$@"
