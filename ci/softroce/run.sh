#!/usr/bin/env bash
# Runs a command where there is an RDMA device: on this host if it has one (or
# can load soft-RoCE), else in a VM with a real soft-RoCE device, rxe0.
#
#   ci/softroce/run.sh [OPTION...] 'SHELL COMMAND'
#   ci/softroce/run.sh [OPTION...] -- COMMAND [ARGUMENT...]
#
# The command sees this host's files at their own paths, and may write to out/;
# what it writes elsewhere is gone afterwards. It starts in the caller's working
# directory, as root, with its input empty. Its output and its exit status become those
# of this script. The devices' packet counters are printed before and after.
#
# Options:
#   --timeout SECONDS   end the command after this long, with status 124 (default 600)
#   --require-traffic   fail when the command succeeds, but no device sent and received packets
#   --devices N         rxe0 on eth0, rxe1 on eth1, ... (default 1; VM only)
#   --mtu BYTES         of eth0 (default 9000, for an RDMA MTU of 4096; VM only)
#   --vm                a VM, whatever the host has
#   --keep              keep the run's directory, with the boot log
#   -q                  only the command's output, and errors
#
# Exit status: the command's; 124 when it ran out of time; 125 when there is no
# device or the VM failed; 1 when --require-traffic found none.
# README.md in this directory has the details.
set -uo pipefail
readonly caller=$PWD
cd "$(dirname "$0")/../.." || exit 125
# shellcheck source=ci/softroce/lib.sh
. ci/softroce/lib.sh
# shellcheck source=ci/softroce/counters.sh
. ci/softroce/counters.sh

limit=600 require=0 devices=1 mtu=9000 only_vm=0 keep=0 sr_quiet=0
command=() before=()
while (( $# )); do
	case $1 in
	--timeout) sr_number "$1" "${2-}" 1 86400; limit=$2; shift ;;
	--devices) sr_number "$1" "${2-}" 1 4; devices=$2; shift ;;
	--mtu) sr_number "$1" "${2-}" 1280 9000; mtu=$2; shift ;;
	--require-traffic) require=1 ;;
	--vm) only_vm=1 ;;
	--keep) keep=1 ;;
	-q) sr_quiet=1 ;;
	--help | -h) sr_usage "$sr_here/run.sh"; exit 0 ;;
	--) shift; command=("$@"); break ;;
	-*) echo "softroce: unknown option $1" >&2; sr_usage "$sr_here/run.sh" >&2; exit 125 ;;
	*) (( $# == 1 )) || sr_die "one shell command, or -- and a command with arguments; see --help"
		[[ -n $1 ]] && command=(bash -c "$1") ;;
	esac
	shift
done
(( ${#command[@]} )) || { sr_usage "$sr_here/run.sh" >&2; exit 125; }

judge() { # STATUS COUNTERS-FILE
	(( $1 == 0 && require )) && ! moved "$2" && {
		echo "softroce: the command succeeded, but no packet went through an RDMA device" >&2
		exit 1
	}
	exit "$1"
}

# On this host, if it has what it takes.
if (( ! only_vm )) && sr_find_device; then
	sr_say "on this host, which has ${sr_devices[*]}: $sr_found"
	counts=$(mktemp) job='' watch=''
	cleanup() {
		[[ -z $watch ]] || kill "$watch" 2>/dev/null
		[[ -z $job ]] || kill -KILL -- "-$job" 2>/dev/null
		rm -f "$counts"
		sr_forget_device
	}
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	for d in "${sr_devices[@]}"; do
		read -ra now <<<"$(packets "$d")"
		before[${#before[@]}]="${now[*]}"
		sr_say "$(show_packets "$d" "${now[@]}")"
	done
	cd "$caller" || exit 125
	SOFTROCE=1 SOFTROCE_DEVICE=${sr_devices[0]} setsid env --default-signal=INT,QUIT "${command[@]}" </dev/null &
	job=$!
	{
		sleep "$limit" &
		trap 'kill $!' TERM
		wait $! || exit 0
		echo "softroce: the command did not end within $limit s" >&2
		kill -QUIT -- "-$job" && sleep 3 && kill -KILL -- "-$job" 2>/dev/null
		exit 124
	} 2>&1 &
	watch=$!
	wait "$job"
	status=$?
	kill "$watch" 2>/dev/null
	wait "$watch"
	(( $? == 124 )) && status=124
	watch=
	for i in "${!sr_devices[@]}"; do
		d=${sr_devices[$i]}
		read -ra now <<<"$(packets "$d")"
		read -ra then <<<"${before[$i]}"
		sr_say "$(show_packets "$d" "${now[@]}" "${then[@]}")"
		echo "$d ${now[*]} ${then[*]}" >>"$counts"
	done
	judge "$status" "$counts"
fi

sr_prepare
dir=$(mktemp -d "$sr_cache/run/$(date +%H%M%S).XXXX") || exit 125
chmod 755 "$dir"
sr_config "$dir" softroce 1 "$limit" "$mtu" "$devices" "10.77.0.1 softroce"
sr_job "$dir" "$caller" "${command[@]}"

sr_pid= sleeper=
stop() {
	[[ -z $sr_pid ]] || kill -KILL "$sr_pid" 2>/dev/null
	[[ -z $sleeper ]] || kill "$sleeper" 2>/dev/null
	wait 2>/dev/null
}
cleanup() { stop; (( keep )) || rm -rf "$dir"; }
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Pipes, because qemu wants descriptors that can only be written.
exec {out}> >(exec cat) {err}> >(exec cat >&2)
nics=()
for (( i = 0; i < devices; i++ )); do
	nics+=(-netdev "hubport,id=n$i,hubid=$i" -device "virtio-net-pci,netdev=n$i,host_mtu=9000,mac=52:54:00:77:0$i:01,romfile=")
done
sr_boot "$dir" "$out" "$err" "${nics[@]}"
exec {out}>&- {err}>&-

# The guest ends the job in time by itself; this is for a guest that hangs.
sleep $((limit + 60)) &
sleeper=$!
wait -n "$sr_pid" "$sleeper"
if [[ ! -s $dir/status ]]; then
	keep=1
	if kill -0 "$sr_pid" 2>/dev/null; then
		echo "softroce: the VM did not end within $((limit + 60)) s; it is killed" >&2
	elif [[ -e $dir/booted ]]; then
		echo "softroce: the VM ended in the middle of the command" >&2
	else
		echo "softroce: the VM did not come up" >&2
	fi
	stop
	sr_failed "$dir"
	exit 125
fi
stop
status=$(cat "$dir/status")
(( status == 124 )) && [[ -e $dir/late ]] && { keep=1; echo "softroce: the command did not end within $limit s; see $dir" >&2; }
judge "$status" "$dir/counters"
