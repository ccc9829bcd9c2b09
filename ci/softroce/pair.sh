#!/usr/bin/env bash
# Runs two commands in two VMs with a soft-RoCE device each, joined by a wire
# that can lose, double, delay and reorder frames, or be cut.
#
#   ci/softroce/pair.sh [OPTION...] 'SHELL COMMAND OF A' 'SHELL COMMAND OF B'
#
# The VMs are softroce-a, 10.77.0.1, and softroce-b, 10.77.0.2; else the commands
# run as in run.sh. They start at the same time, when both VMs are up, and a VM whose
# command has ended stays until the other's has. Their output is prefixed
# with "a| " and "b| "; the counters of the wire come last.
#
# Inside, `relay COMMAND` changes the wire, and returns when the change is in
# effect: `relay cut`, `relay set drop=0.01`, `relay a set delay=5ms match=ack`, `relay stats`, ...
# (ci/softroce/relay/command.go has them all). `vanish` ends a VM at once, as if its power
# had failed, and counts as success. `meet NAME` waits until both have called it.
# SOFTROCE_SELF and SOFTROCE_PEER have the addresses.
#
# Options:
#   --wire COMMAND      a command to the relay before the start; may be repeated
#   --seed N            of what the relay loses, doubles and reorders (default 1)
#   --timeout SECONDS   end the commands after this long, with status 124 (default 600)
#   --require-traffic   fail when the commands succeed, but no device sent and received packets
#   --mtu BYTES         of eth0 in A (default 9000, for an RDMA MTU of 4096)
#   --mtu-b BYTES       of eth0 in B (default: that of A)
#   --cpus N            of each VM (default 2)
#   --keep              keep the run's directories, with the boot logs
#   -q                  only the commands' output, and errors
#
# Exit status: 0 when both commands succeeded, else that of A if it failed, else
# that of B; 124 for one that ran out of time, 125 for a VM that failed.
set -uo pipefail
readonly caller=$PWD
cd "$(dirname "$0")/../.." || exit 125
# shellcheck source=ci/softroce/lib.sh
. ci/softroce/lib.sh
# shellcheck source=ci/softroce/counters.sh
. ci/softroce/counters.sh

limit=600 require=0 mtu=9000 mtu_b='' seed=1 keep=0 sr_quiet=0 sr_cpus=2 sr_memory=2048 sr_together=1
wire=() commands=()
while (( $# )); do
	case $1 in
	--wire) wire+=("${2-}"); shift ;;
	--seed) sr_number "$1" "${2-}" 0 999999999; seed=$2; shift ;;
	--timeout) sr_number "$1" "${2-}" 1 86400; limit=$2; shift ;;
	--mtu) sr_number "$1" "${2-}" 1280 9000; mtu=$2; shift ;;
	--mtu-b) sr_number "$1" "${2-}" 1280 9000; mtu_b=$2; shift ;;
	--cpus) sr_number "$1" "${2-}" 1 8; sr_cpus=$2; shift ;;
	--require-traffic) require=1 ;;
	--keep) keep=1 ;;
	-q) sr_quiet=1 ;;
	--help | -h) sr_usage "$sr_here/pair.sh"; exit 0 ;;
	-*) echo "softroce: unknown option $1" >&2; sr_usage "$sr_here/pair.sh" >&2; exit 125 ;;
	*) commands+=("$1") ;;
	esac
	shift
done
(( ${#commands[@]} == 2 )) || sr_die "two shell commands, not ${#commands[@]}; see --help"

sr_prepare
(CGO_ENABLED=0 go build -o out/softroce/relay ./ci/softroce/relay) || sr_die "cannot build the relay"

sockets=$(mktemp -d) || exit 125
sr_meeting=$(mktemp -d "$sr_cache/run/$(date +%H%M%S)-pair.XXXX") || exit 125
declare -A dir pid status
sr_pid='' relay='' sleeper=''
stop() {
	local p
	for p in "${pid[@]}" "$sleeper"; do
		[[ -z $p ]] || kill -KILL "$p" 2>/dev/null
	done
	if [[ -n $relay ]]; then
		kill "$relay" 2>/dev/null
		wait "$relay"
		relay=
	fi
	wait 2>/dev/null
}
cleanup() {
	stop
	rm -rf "$sockets" "$sr_meeting"
	(( keep )) || rm -rf "${dir[@]}"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

setpriv --pdeathsig TERM out/softroce/relay -seed "$seed" "$sockets" "${wire[@]}" >"$sockets/relay.log" 2>&1 &
relay=$!
for (( i = 0; ; i++ )); do
	[[ -S $sockets/control ]] && break
	if (( i == 100 )) || ! kill -0 "$relay" 2>/dev/null; then
		cat "$sockets/relay.log" >&2
		sr_die "the relay did not start"
	fi
	sleep 0.05
done

boot() { # NAME NUMBER PEER'S-NUMBER MTU COMMAND
	local name=$1 out err d
	d=$(mktemp -d "$sr_cache/run/$(date +%H%M%S)-$name.XXXX") || exit 125
	chmod 755 "$d"
	dir[$name]=$d
	sr_config "$d" "softroce-$name" "$2" "$limit" "$4" 1 $'10.77.0.1 softroce-a\n10.77.0.2 softroce-b'
	sr_export="SOFTROCE_SELF=10.77.0.$2 SOFTROCE_PEER=10.77.0.$3" sr_job "$d" "$caller" bash -c "$5"
	exec {out}> >(exec sed -u "s/^/$name| /") {err}> >(exec sed -u "s/^/$name| /" >&2)
	sr_boot "$d" "$out" "$err" \
		-netdev "dgram,id=n0,local.type=unix,local.path=$sockets/$name,remote.type=unix,remote.path=$sockets/$name.relay" \
		-device "virtio-net-pci,netdev=n0,host_mtu=9000,mac=52:54:00:77:00:0$2,romfile=" \
		-chardev "socket,id=relay,path=$sockets/control" -device virtserialport,chardev=relay,name=relay
	pid[$name]=$sr_pid
	exec {out}>&- {err}>&-
}
boot a 1 2 "$mtu" "${commands[0]}"
boot b 2 1 "${mtu_b:-$mtu}" "${commands[1]}"

# The guests end the jobs in time by themselves; this is for one that hangs.
deadline=$((SECONDS + limit + 120)) going=0
while :; do
	if (( ! going )) && [[ -e ${dir[a]}/booted && -e ${dir[b]}/booted ]]; then
		going=1
		touch "${dir[a]}/go" "${dir[b]}/go"
	fi
	running=0
	for name in a b; do
		[[ -z ${status[$name]-} ]] || continue
		if [[ -s ${dir[$name]}/status ]]; then
			status[$name]=$(cat "${dir[$name]}/status")
			(( status[$name] != 124 )) || keep=1
		elif ! kill -0 "${pid[$name]}" 2>/dev/null && [[ ! -s ${dir[$name]}/status ]]; then
			status[$name]=125 keep=1
			echo "softroce: the VM $name ended in the middle" >&2
			sr_failed "${dir[$name]}"
			# A VM that did not come up would keep the other waiting.
			(( going )) || stop
		elif (( SECONDS >= deadline )); then
			status[$name]=125 keep=1
			echo "softroce: the VM $name did not end within $((limit + 120)) s; it is killed" >&2
			kill -KILL "${pid[$name]}"
			sr_failed "${dir[$name]}"
		else
			running=1
		fi
	done
	(( running )) || break
	sleep 0.1
done
touch "${dir[a]}/end" "${dir[b]}/end"
# The VMs go by themselves now. What they printed last goes through with their end.
for (( i = 0; i < 100; i++ )); do
	kill -0 "${pid[a]}" 2>/dev/null || kill -0 "${pid[b]}" 2>/dev/null || break
	sleep 0.1
done
stop
(( sr_quiet )) || { cat "$sockets/relay.log"; sr_say "a exited with ${status[a]}, b with ${status[b]}"; } >&2
(( keep )) && sr_say "kept: ${dir[a]} ${dir[b]}"
for name in a b; do
	(( status[$name] == 0 )) || exit "${status[$name]}"
done
if (( require )); then
	moved "${dir[a]}/counters" || moved "${dir[b]}/counters" ||
		{ echo "softroce: the commands succeeded, but no packet went through an RDMA device" >&2; exit 1; }
fi
exit 0
