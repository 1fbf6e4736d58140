#!/bin/sh
# Writes and verifies the drive $1, round after round, until /run/load.stop appears. Then it rests until
# /run/read-back appears, and reads the last round's data once more. The host removes all of these first.
set -e
export DRIVE=$1
. /lib/wait-for.sh
# The host kills and starts the daemon meanwhile.
READ_BACK_LIMIT_S=600
round=0
until test -e /run/load.stop; do
    round=$((round + 1))
    SEED=$(printf 0x%08x $round) fio --minimal /etc/kill.fio
done
echo $round >/run/resting.new
mv /run/resting.new /run/resting
wait_for "the host's word to read back" $READ_BACK_LIMIT_S "test -e /run/read-back"
SEED=$(printf 0x%08x $round) fio --minimal --verify_only --section=single --section=synced --section=mixed /etc/kill.fio
