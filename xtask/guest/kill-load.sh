#!/bin/sh
# Writes and verifies /dev/vda, round after round, until /run/stop appears. Then it rests until
# /run/read-back appears, and reads the last round's data once more.
set -e
rm -f /run/stop /run/resting /run/read-back
round=0
until test -e /run/stop; do
    round=$((round + 1))
    SEED=$(printf 0x%08x $round) fio --minimal /etc/kill.fio
done
echo $round >/run/resting.new
mv /run/resting.new /run/resting
until test -e /run/read-back; do sleep 0.1; done
SEED=$(printf 0x%08x $round) fio --minimal --verify_only --section=single --section=synced --section=mixed /etc/kill.fio
