# Serves commands from the host. Run or sourced by the first process, or started by it.
#
# Host to guest, a line:  ID LIMIT_S COMMAND
# Guest to host:          "EVK ID EXIT_CODE SIZE_BYTES", a newline, then the output's bytes.
# "EVK hello" is sent once per boot. The kernel's console is another device, so its messages
# never mix with this.
. /lib/wait-for.sh

# The host gives up on a boot before this does.
PORT_LIMIT_S=900
find_port() {
    name=$(grep -lx evenkeel.agent /sys/class/virtio-ports/*/name)
    port=/dev/$(basename "$(dirname "$name")")
    test -c "$port"
}
wait_for "the virtio port evenkeel.agent" $PORT_LIMIT_S find_port

exec 3<>"$port"
printf 'EVK hello\n' >&3
while :; do
    read -r id limit_s command <&3 || { sleep 0.1; continue; }
    timeout -s KILL "$limit_s" sh -c "$command" >/run/output 2>&1 </dev/null 3<&-
    code=$?
    printf 'EVK %s %s %s\n' "$id" "$code" "$(wc -c </run/output)" >&3
    cat /run/output >&3
done
