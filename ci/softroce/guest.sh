#!/run/softroce/busybox sh
# shellcheck shell=busybox disable=SC2086
# Runs as process 1 of the VM, on the host's root under an overlay: sets up the
# network and the soft-RoCE devices, runs the job, reports, powers off. Here
# busybox runs its own tools (ip, ps, ...) rather than those in PATH.
#
#   guest.sh DIR
#
# DIR is the run's directory on the host, writable from here. It has:
#   config    what the host's script wants, as shell assignments
#   job       the script to run
#   go        where sr_together=1: the job may start
#   end       where sr_together=1: the VM may go
# and gets:
#   booted    empty: the devices are up
#   counters  a line for each device: name, packets after, packets before
#   late      empty: the job did not end in time
#   status    the job's exit status; written last
#   dmesg     the kernel's messages
run=$1
log() { echo "softroce: $*" >/dev/console; }
die() { log "guest: $*"; sync; poweroff -f; sleep 60; }

PATH=/usr/sbin:/usr/bin:/sbin:/bin
. "$run/config" || die "cannot read $run/config"
. "$sr_here/counters.sh" || die "cannot read $sr_here/counters.sh"

mkdir -p /dev/shm /dev/pts /run/softroce/tmp /run/softroce/bin /run/lock
chmod 1777 /run/softroce/tmp /run/lock
mount -t tmpfs -o mode=1777 shm /dev/shm && mount -t devpts -o mode=620,ptmxmode=666 pts /dev/pts || die "cannot mount /dev/shm and /dev/pts"
mount -t cgroup2 cgroup2 /sys/fs/cgroup || log "no cgroup2"
ln -sfn /proc/self/fd /dev/fd
ln -sfn /proc/self/fd/0 /dev/stdin
ln -sfn /proc/self/fd/1 /dev/stdout
ln -sfn /proc/self/fd/2 /dev/stderr
ulimit -l unlimited

# So that modprobe finds what the initramfs does not have: sch_netem, veth, ...
modules=/lib/modules/$(uname -r)
mkdir -p "$modules" && mount --bind "$sr_modules" "$modules" || log "no modules at $sr_modules"

hostname "$sr_hostname"
echo "$sr_hostname" >/etc/hostname
printf '127.0.0.1 localhost\n%s\n' "$sr_hosts" >/etc/hosts
ip link set lo up || die "cannot set lo up"
devices= i=0
while [ $i -lt $sr_devices ]; do
	ip link set eth$i mtu $sr_mtu && ip link set eth$i up && ip addr add 10.$((77 + i)).0.$sr_number/24 brd + dev eth$i ||
		die "cannot set up eth$i"
	rdma link add rxe$i type rxe netdev eth$i || die "cannot add rxe$i on eth$i"
	devices="$devices rxe$i"
	i=$((i + 1))
done

# The ports to the host have a name in sysfs only, as there is no udev here.
out= err= relay=
for port in /sys/class/virtio-ports/*; do
	read -r name <$port/name
	case $name in
	out) out=/dev/${port##*/} ;;
	err) err=/dev/${port##*/} ;;
	relay) relay=/dev/${port##*/} ;;
	esac
done
[ -n "$out" ] && [ -n "$err" ] || die "no port to the host"
if [ -n "$relay" ]; then
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
# vanish: this VM is gone from one moment to the next. It counts as success.
cat >/run/softroce/bin/vanish <<-END
	#!/bin/bash
	echo 0 >$run/status && sync && echo o >/proc/sysrq-trigger
	sleep 60
END
chmod +x /run/softroce/bin/vanish
# meet NAME: waits until the job in the other VM calls it, too, at most two minutes.
if [ $sr_together = 1 ]; then
	cat >/run/softroce/bin/meet <<-END
		#!/bin/bash
		: >"$sr_meeting/\$1.$sr_number" || exit
		for (( i = 0; i < 1200; i++ )); do
			[[ -e $sr_meeting/\$1.$((3 - sr_number)) ]] && exit
			sleep 0.1
		done
		echo "meet \$1: the other VM did not come within 120 s" >&2
		exit 1
	END
	chmod +x /run/softroce/bin/meet
fi

# together NAME: waits for the file NAME from the host, if there is another VM.
together() {
	while [ $sr_together = 1 ] && ! [ -e "$run/$1" ]; do
		sleep 0.1
	done
}

# Through pipes, because a port opens only once: the job may open /dev/stderr.
mkfifo /run/softroce/out /run/softroce/err
cat </run/softroce/out >$out &
cats=$!
cat </run/softroce/err >$err &
cats="$cats $!"
exec 5>/run/softroce/out 6>/run/softroce/err
say() { echo "softroce: $*" >&6; }

# younger PID: processes that started with or after PID, without kernel threads and this script's.
younger() {
	for proc in /proc/[0-9]*; do
		[ ${proc#/proc/} -ge $1 ] || continue
		line=$(tr '\0' ' ' 2>/dev/null <$proc/cmdline)
		case $line in "" | *"$run/guest.sh"*) ;; *) echo ${proc#/proc/} ;; esac
	done 2>/dev/null
}

# diagnose: says what is known about a job that hangs, and ends it. A Go program
# answers QUIT with its stacks.
diagnose() {
	say "the job did not end within $sr_limit s; this is the state of the VM"
	{
		/bin/ps -eo pid,ppid,stat,wchan:20,time,args --forest | grep -v '\]$'
		rdma resource show
		rdma statistic show
		dmesg | tail -n 20
	} 2>&1 | sed 's/^/softroce: | /' >&6
	kill -QUIT $(younger $job) 2>/dev/null
	sleep 3
	kill -KILL $(younger $job) 2>/dev/null
}

for d in $devices; do
	eval "before_$d=\$(packets $d)"
	[ $sr_quiet = 1 ] || eval "say \$(show_packets $d \$before_$d)"
done
: >"$run/booted"
together go
read -r uptime _ </proc/uptime
log "the job starts after $uptime s"

# What is started with & ignores these two signals otherwise, and so do its children.
setsid /usr/bin/env --default-signal=INT,QUIT bash "$run/job" </dev/null >&5 2>&6 5>&- 6>&- &
job=$!
(
	sleep $sr_limit 5>&- 6>&- &
	trap 'kill $!; wait; exit' TERM
	wait $! && : >"$run/late" && diagnose
) >/dev/null 2>&1 &
watch=$!
wait $job
status=$?
if [ -e "$run/late" ]; then
	wait $watch
	status=124
else
	kill $watch
	wait $watch
fi
for pid in $(younger $job); do
	say "left running by the job: $pid: $(tr '\0' ' ' 2>/dev/null </proc/$pid/cmdline)"
	kill -KILL $pid
done

for d in $devices; do
	after=$(packets $d)
	eval "before=\$before_$d"
	[ $sr_quiet = 1 ] || say "$(show_packets $d $after $before)"
	echo "$d $after $before"
done >"$run/counters"
exec 5>&- 6>&-
wait $cats
dmesg >"$run/dmesg"
echo $status >"$run/status"
read -r uptime _ </proc/uptime
log "the job ended with status $status after $uptime s"
sync
together end
poweroff -f
sleep 60
