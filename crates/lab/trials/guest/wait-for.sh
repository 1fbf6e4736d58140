# Sourced by the guest's scripts and by the host's commands.

# wait_for WHAT LIMIT_S CONDITION
# Waits until the command line CONDITION succeeds. After LIMIT_S seconds it says that WHAT did not come, shows what
# CONDITION says, and fails.
wait_for() {
    wait_start_s=$(cut -d. -f1 /proc/uptime)
    until eval "$3" >/dev/null 2>&1; do
        if [ $(($(cut -d. -f1 /proc/uptime) - wait_start_s)) -ge "$2" ]; then
            echo "waited $2 s in vain for $1:"
            eval "$3" && return 0
            return 1
        fi
        sleep 0.1
    done
}

# Whether the drive $1 can be opened: its node comes before it can be.
opens() {
    test -b "$1" && true <"$1"
}
