# A host of its own out of the root $1: what is written goes to $2, where `run` is its /run; $3 has Evenkeel's programs.
# Of this machine's devices it has the usual ones and $4.
# Made in mount and PID namespaces that were just made; ends, and everything in it, once nobody writes to it any more.
set -e
root=$2/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/written,workdir=$2/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom tty $4; do
    cp -a "/dev/$device" "$root/dev/"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts devpts "$root/dev/pts"
mount -t tmpfs shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
mount --bind "$2/run" "$root/run"
for program in evenkeel evenkeeld; do
    : >"$root/usr/bin/$program"
    mount --bind "$3/$program" "$root/usr/bin/$program"
done
echo ready
# The first process inherits orphans; ignoring their ends buries them.
exec env --ignore-signal=CHLD cat
