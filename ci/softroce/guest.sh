#!/usr/bin/env bash
# Runs as process 1 of the VM, on the host's root under an overlay: sets up the
# network and the soft-RoCE devices, runs the job, reports, powers off.
#
#   guest.sh DIR
#
# DIR is the run's directory on the host, writable from here. It has:
#   config    what run.sh wants, as shell assignments
#   job       the script to run
# and gets:
#   booted    empty: the devices are up and the job starts
#   counters  a line for each device: name, packets before, packets after
#   status    the job's exit status; written last
run=$1
log() { echo "softroce: $*" >/dev/console; }
die() { log "guest: $*"; exec /bin/busybox poweroff -f; }

# shellcheck source=/dev/null
. "$run/config" || die "cannot read $run/config"
# shellcheck source=ci/softroce/counters.sh
. "$sr_here/counters.sh" || die "cannot read $sr_here/counters.sh"

mkdir -p /dev/shm /dev/pts /run/softroce/tmp /run/lock
mount -t tmpfs -o mode=1777 shm /dev/shm && mount -t devpts -o mode=620,ptmxmode=666 pts /dev/pts || die "cannot mount /dev/shm and /dev/pts"
mount -t cgroup2 cgroup2 /sys/fs/cgroup || log "no cgroup2"
ln -sfn /proc/self/fd /dev/fd
ln -sfn /proc/self/fd/0 /dev/stdin
ln -sfn /proc/self/fd/1 /dev/stdout
ln -sfn /proc/self/fd/2 /dev/stderr
chmod 1777 /run/softroce/tmp
ulimit -l unlimited

# So that modprobe finds what the initramfs does not have: sch_netem, veth, ...
mkdir -p "/lib/modules/$(uname -r)" && mount --bind "$sr_modules" "/lib/modules/$(uname -r)" || log "no modules at $sr_modules"

hostname "$sr_hostname"
printf '127.0.0.1 localhost\n%s\n' "$sr_hosts" >/etc/hosts
echo "$sr_hostname" >/etc/hostname
ip link set lo up || die "cannot set lo up"
devices=()
for (( i = 0; i < sr_devices; i++ )); do
	ip link set "eth$i" mtu "$sr_mtu" up && ip addr add "10.$((77 + i)).0.$sr_number/24" dev "eth$i" ||
		die "cannot set up eth$i"
	rdma link add "rxe$i" type rxe netdev "eth$i" || die "cannot add rxe$i on eth$i"
	devices+=("rxe$i")
done

# The ports to the host have a name in sysfs only, as there is no udev here.
port() {
	local dir
	for dir in /sys/class/virtio-ports/*; do
		[[ $(cat "$dir/name" 2>/dev/null) == "$1" ]] && { echo "/dev/${dir##*/}"; return; }
	done
	return 1
}
out=$(port out) && err=$(port err) || die "no port to the host"
mkdir -p /run/softroce/bin
if relay=$(port relay); then
	# relay LINE: one command to the relay on the wire between the two VMs, and its answer.
	cat >/run/softroce/bin/relay <<-END
		#!/bin/bash
		exec 8>/run/softroce/relay.lock && flock 8 || exit
		exec 9<>$relay || exit
		echo "\$*" >&9 && IFS= read -r -t 10 answer <&9 || { echo "relay: no answer" >&2; exit 1; }
		echo "relay: \$answer"
		[[ \$answer == ok* ]]
	END
	chmod +x /run/softroce/bin/relay
fi

# Through pipes, because a port opens only once: the job may open /dev/stderr.
mkfifo /run/softroce/out /run/softroce/err
cat </run/softroce/out >"$out" &
cats=($!)
cat </run/softroce/err >"$err" &
cats+=($!)
exec 5>/run/softroce/out 6>/run/softroce/err

say() { echo "softroce: $*" >&6; }

# The job's processes are those that are younger than itself, without kernel threads.
young() {
	local proc pid
	for proc in /proc/[0-9]*; do
		pid=${proc#/proc/}
		(( pid >= job && pid != BASHPID )) && [[ " ${mine[*]} " != *" $pid "* ]] &&
			[[ -n $(tr -d '\0' <"$proc/cmdline" 2>/dev/null) ]] && echo "$pid"
	done
}

# What is known about a job that hangs. A Go program answers QUIT with its stacks.
diagnose() {
	mine=("$BASHPID")
	say "the job did not end within $sr_limit s; this is the state of the VM"
	{
		ps -eo pid,ppid,stat,wchan:20,time,args --forest | grep -v '\]$'
		rdma resource show
		rdma statistic show
		dmesg | tail -n 20
	} 2>&1 | sed 's/^/softroce: | /' >&6
	local pid
	for pid in $(young); do
		kill -QUIT "$pid" 2>/dev/null
	done
	sleep 3
	for pid in $(young); do
		kill -KILL "$pid" 2>/dev/null
	done
}

declare -A before
for d in "${devices[@]}"; do
	before[$d]=$(packets "$d")
	(( sr_quiet )) || say "$(show_packets "$d" "${before[$d]}")"
done
: >"$run/booted"
log "the job starts after $(cut -d' ' -f1 /proc/uptime) s"

mine=()
# What bash starts with & ignores these two signals otherwise, and so do its children.
setsid env --default-signal=INT,QUIT bash "$run/job" </dev/null >&5 2>&6 5>&- 6>&- &
job=$!
( sleep "$sr_limit" & trap 'kill $!' TERM; wait $! && : >/run/softroce/late && diagnose ) 5>&- >/dev/null 2>&1 &
watch=$!
mine+=("$watch")
wait "$job"
status=$?
if [[ -e /run/softroce/late ]]; then
	wait "$watch"
	status=124
else
	kill "$watch" 2>/dev/null
	wait "$watch" 2>/dev/null
fi

left=$(young)
for pid in $left; do
	say "left running by the job: $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"
	kill -KILL "$pid" 2>/dev/null
done

: >"$run/counters"
for d in "${devices[@]}"; do
	after=$(packets "$d")
	(( sr_quiet )) || say "$(show_packets "$d" "$after" "${before[$d]}")"
	echo "$d ${before[$d]} $after" >>"$run/counters"
done
exec 5>&- 6>&-
wait "${cats[@]}"
dmesg >"$run/dmesg"
echo "$status" >"$run/status"
log "the job ended with status $status after $(cut -d' ' -f1 /proc/uptime) s"
sync
exec /bin/busybox poweroff -f
