#!/bin/sh
# In a host that runs no systemd: what `systemctl start evenkeeld` and `systemctl restart evenkeeld` do.
set -e
pid_file=/run/evenkeeld.pid
log=/var/log/evenkeeld.log

case "$*" in
"start evenkeeld") ;;
"restart evenkeeld")
    pid=$(cat $pid_file)
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    ;;
*)
    echo "systemctl $*: there is no systemd here" >&2
    exit 1
    ;;
esac

evenkeeld /etc/evenkeel/config.toml >>$log 2>&1 &
echo $! >$pid_file
until evenkeel disk list >/dev/null 2>&1; do
    kill -0 $! || { cat $log; exit 1; }
    sleep 0.1
done
