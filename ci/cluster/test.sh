#!/usr/bin/env bash
# What `make test-cluster` runs: jobs on several hosts, started as a batch system's own
# tools and ssh start them. The hosts are network namespaces (lib.sh); ssh and the tools of batch systems
# that cannot be installed are shims with the limits of the real ones (shims/); Slurm is real.
#
#   ci/cluster/test.sh [STEP...]    without names: all
#
# A step's output is in out/cluster/STEP.log, and shown when it fails. It needs root.
# Nothing is left behind: no process, no network, no file outside of out/.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
readonly root=$PWD out=$PWD/out/cluster
. ci/cluster/lib.sh
. ci/cluster/slurm.sh
. ci/cluster/gridengine.sh

steps=(ssh mesh heat2d binding scripts exit_codes stdin kill_weftrun kill_agent link_down link_busy restart keep_going signals unreachable tree tm pbsdsh pbs_tmrsh qrsh blaunch slurm gridengine)
limit=90 # seconds for a step
weftrun=$out/bin/weftrun
on=ci/cluster/on
hosts=n1:2,n2:2,n3:2,n4:2
options=() # for weftrun, besides

# job ARGUMENT...: weftrun on n1, as a user there types it. In a process of its own it becomes weftrun.
job() {
	(exec "$root/$on" n1 env PATH="$root/ci/cluster/shims:/usr/bin:/bin:/usr/sbin:/sbin" "$weftrun" "$@")
}

# want CODE COMMAND...: runs it, keeps its output in $got, and fails unless it ends with that code.
want() {
	local code=$1 status
	shift
	got=$("$@" 2>&1)
	status=$?
	printf '%s\n' "$got"
	(( status == code )) || { echo "FAIL: exit status $status, want $code: $*"; return 1; }
}

# says TEXT...: each must be in $got.
says() {
	local text
	for text; do
		[[ $got == *"$text"* ]] || { echo "FAIL: the output lacks: $text"; return 1; }
	done
}

# empty: no process is left on any host, after a little while.
empty() {
	local i left
	for i in {1..150}; do
		left=$(cluster_left)
		[[ -z $left ]] && return 0
		sleep 0.1
	done
	echo "FAIL: left on the hosts:"
	echo "$left"
	return 1
}

# await_text TEXT COUNT: until TEXT is in COUNT lines of $log; 20 seconds at most.
await_text() {
	local i
	for i in {1..200}; do
		(( $(grep -c -- "$1" "$log") >= $2 )) && return 0
		sleep 0.1
	done
	echo "FAIL: no $1, $2 times, in:"
	cat "$log"
	return 1
}

# background ARGUMENT...: a job that runs on, its output in $log; it returns when TEXT is there
# COUNT times. Its weftrun is $launcher.
background() {
	local text=$1 count=$2
	shift 2
	log=$out/background.log
	: >"$log"
	"$root/$on" n1 env PATH="$root/ci/cluster/shims:/usr/bin:/bin:/usr/sbin:/sbin" "$weftrun" "$@" >"$log" 2>&1 &
	launcher=$!
	await_text "$text" "$count"
}

step_ssh() {
	want 0 job --host "$hosts" sh -c 'echo rank $WEFT_RANK of $WEFT_SIZE, local $WEFT_LOCAL_RANK, on $(hostname)' &&
		says 'rank 0 of 8, local 0, on n1' 'rank 3 of 8, local 1, on n2' 'rank 7 of 8, local 1, on n4' &&
		want 0 job --host n2,n3 --map-by node -n 2 hostname && says n2 n3 && empty
}

step_mesh() {
	want 0 job --host "$hosts" "$out/bin/mesh" && says 'rank 0 of 8 on n1 is right' 'rank 7 of 8 on n4 is right' && empty || return
	# Ranks that are neighbours are on different hosts, and one host has none of weftrun's own.
	want 0 job --host n2:2,n3:1,n4:3 --map-by node "$out/bin/mesh" && says 'rank 5 of 6 on n4 is right' || return
	want 0 job --host "$hosts" --transport tcp -n 5 "$out/bin/mesh" && empty
}

step_heat2d() {
	want 0 job --host n1,n2,n3,n4 "$out/bin/heat2d" -check -size 96 -steps 60 -out '' && says 'max difference to the serial solution: 0' &&
		want 0 job --host "$hosts" "$out/bin/heat2d" -check -size 96 -steps 60 -out '' &&
		says 'shm inside a host, tcp between hosts' 'max difference to the serial solution: 0' && empty
}

# Hosts that let the job use different processors: each agent finds its own.
step_binding() {
	cat >"$out/bin/agent" <<-EOF
		#!/bin/sh
		case \$(hostname) in n2) cpu=0 ;; *) cpu=1 ;; esac
		exec taskset -c \$cpu $weftrun "\$@"
	EOF
	chmod +x "$out/bin/agent"
	want 0 job --agent "$out/bin/agent" --report-bindings --host n2,n3 sh -c 'echo $(hostname) $(grep Cpus_allowed_list /proc/self/status)' &&
		says 'rank 0 on host n2 is bound to processors 0: a core of socket 0' 'rank 1 on host n3 is bound to processors 1: ' \
			'n2 Cpus_allowed_list: 0' 'n3 Cpus_allowed_list: 1' || return
	want 0 job --agent "$out/bin/agent" --map-by numa --bind-to socket --report-bindings --host n2:2 true &&
		says 'rank 1 on host n2 is bound to processors 0: socket 0' || return
	want 121 job --agent "$out/bin/agent" --bind-to core --host n2:2 true &&
		says 'host n2: --bind-to core on host n2: 2 ranks but 1 core may be used (processors 0)' && empty
}

# Directory, umask, environment: carried by weftrun, as ssh starts in the home directory.
step_scripts() {
	mkdir -p "$out/a dir"
	cd "$out/a dir" && umask 027 && export FROM_HERE='$x; "y"' HOSTNAME=n1
	want 0 job --host n2 -x "TOO=it's" sh -c 'pwd; umask; echo "$FROM_HERE $TOO <$HOSTNAME>"' &&
		says "$out/a dir" 0027 "\$x; \"y\" it's <>"
	local status=$?
	cd "$root" && umask 022 && unset FROM_HERE
	(( status == 0 )) && empty
}

step_exit_codes() {
	want 5 job --host n1,n2,n3 sh -c '[ $WEFT_RANK = 2 ] && exit 5; exec sleep 100' && says 'rank 2 on host n3 (pid ' 'exit status 5' || return
	want 137 job --host n1,n2,n3 sh -c '[ $WEFT_RANK = 1 ] && kill -9 $$; exec sleep 100' && says 'rank 1 on host n2 ' 'signal 9' || return
	want 127 job --host n1,n2 --wdir / no-such-program && want 124 job --host n1,n2 --timeout 1s sleep 100 && empty
}

step_stdin() {
	head -c 650015 /dev/urandom >"$out/input"
	want 0 job --host n3,n1 sh -c '[ $WEFT_RANK = 1 ] || exec sha256sum' <"$out/input" && says "$(sha256sum <"$out/input" | cut -d' ' -f1)" && empty
}

# kill -9 of weftrun: nothing is left on any host; where agents were, not even what ranks
# have started in sessions of their own.
step_kill_weftrun() {
	background ready 8 --host "$hosts" sh -c 'trap "" TERM INT
		if [ $(hostname) = n1 ]; then sleep 1000 & else setsid sleep 1000 & fi
		sleep 0.5; echo ready; while :; do sleep 1; done' || return
	kill -KILL "$launcher"
	wait "$launcher" 2>/dev/null
	empty
}

# agent HOST: the process id of weftrun's agent there.
agent() {
	local pid
	for pid in $(pgrep -f -- "--as-agent weft-.* $1\$"); do
		[[ $(readlink "/proc/$pid/exe") == "$weftrun" ]] && echo "$pid" && return
	done
}

step_kill_agent() {
	background 'is right' 8 --host "$hosts" "$out/bin/mesh" -hold 100s || return
	kill -KILL "$(agent n3)"
	wait "$launcher"
	local status=$?
	cat "$log"
	(( status == 122 )) || { echo "FAIL: exit status $status, want 122"; return 1; }
	got=$(<"$log") && says 'weftrun: host n3 was lost, with ranks 4-5' && empty
}

# pulled COUNT ARGUMENT...: a cable is pulled while ranks say COUNT times that they are right. The host is named
# within 12 seconds, and both sides of the cut clean up.
pulled() {
	local count=$1 began i took status
	shift
	background 'is right' "$count" "${options[@]}" --host "$hosts" "$out/bin/mesh" "$@" || return
	began=$SECONDS
	cluster_link n2 down
	for i in {1..300}; do
		grep -q 'host n2 was lost' "$log" && break
		sleep 0.1
	done
	took=$(( SECONDS - began ))
	wait "$launcher"
	status=$?
	grep -v 'is right' "$log"
	echo "the host was named after $took s"
	cluster_link n2 up
	(( took <= 12 && status == 122 )) || { echo "FAIL: after $took s, exit status $status, want 122 within 12 s"; return 1; }
	got=$(<"$log") && says 'weftrun: host n2 was lost, with ranks 2-3: nothing was heard from it' && empty
}

step_link_down() { pulled 8 -hold 100s; }

# While messages are under way other ranks miss the host too, perhaps before weftrun does. It is the host that is named.
step_link_busy() { pulled 80 -busy; }

# A host is cut off; the job starts again on those that are left.
step_restart() {
	background 'is right' 6 --restart 2 --host "$hosts" -n 6 sh -c "[ \$WEFT_RESTART = 0 ] && set -- -hold 100s; exec $out/bin/mesh \"\$@\"" || return
	cluster_link n2 down
	wait "$launcher"
	local status=$?
	cluster_link n2 up
	got=$(<"$log")
	printf '%s\n' "$got"
	(( status == 0 )) || { echo "FAIL: exit status $status"; return 1; }
	says 'host n2 was lost, with ranks 2-3: nothing was heard from it' 'the job is started again, restart 1 of 2, without n2' \
		'rank 2 of 6 on n3 is right' 'rank 5 of 6 on n4 is right' && empty
}

# A rank dies on one host; those of all hosts learn of it, and go on with each other.
step_keep_going() {
	want 137 job --keep-going --host "$hosts" "$out/bin/mesh" -lose 3 &&
		says 'rank 3 on host n2 (pid ' 'signal 9' '; the others go on' 'rank 0 does without rank 3' 'rank 2 does without rank 3' 'rank 7 does without rank 3' \
			'1 of 8 ranks failed:' && empty
}

step_signals() {
	background ready 3 --host n1,n2,n3 sh -c 'trap "echo USR1" USR1; trap "echo TERM; exit 0" TERM; echo ready; while :; do sleep 0.1; done' || return
	kill -USR1 "$launcher"
	sleep 1
	kill -TERM "$launcher"
	wait "$launcher"
	local status=$?
	cat "$log"
	(( status == 143 && $(grep -c USR1 "$log") == 3 && $(grep -c TERM "$log") == 3 )) ||
		{ echo "FAIL: exit status $status, want 143, and each signal from 3 ranks"; return 1; }
	empty
}

step_unreachable() {
	want 121 job --host n1,n9 true && says 'no agent on host n9: ssh ended with exit status 255: ssh: Could not resolve hostname n9' || return
	cluster_link n2 down
	want 121 job --host n1,n2 true
	local status=$?
	cluster_link n2 up
	(( status == 0 )) && says 'no agent on host n2' 'No route to host' || return
	# Waiting for the switch to forward again.
	want 0 job --host n1,n2 true && empty
}

# More hosts than one process starts: a few real ones have many names.
step_tree() {
	local n names=()
	for n in {1..40}; do names+=("m$n"); ln -sf "/run/netns/weft-n$(( n % 4 + 1 ))" "/run/netns/weft-m$n"; done
	want 0 job --host "$(IFS=,; echo "${names[*]}")" sh -c 'echo rank $WEFT_RANK'
	local status=$?
	rm -f /run/netns/weft-m*
	(( status == 0 )) && says 'rank 0' 'rank 39' && (( $(grep -c rank <<<"$got") == 40 )) && empty
}

pbs_job() {
	printf 'n1\nn1\nn2\nn3\nn3\n' >"$out/nodes"
	: >"$out/job.out"
	PBS_JOBID=7.head PBS_NODEFILE=$out/nodes PBS_ENVIRONMENT=PBS_BATCH PBS_O_WORKDIR=$PWD job "$@"
}

# tm_job ARGUMENT...: weftrun as the script of a PBS job, under a MoM of ours that speaks TM.
tm_job() {
	"$on" n1 "$out/bin/mom" -nodes n1,n1,n2,n2,n3,n4 -dir "$out" "$weftrun" "$@"
	local status=$?
	cat "$out/job.out"
	return $status
}

# tm_background TEXT COUNT ARGUMENT...: such a job that runs on; its MoM is $mom.
tm_background() {
	local text=$1 count=$2
	shift 2
	log=$out/job.out
	: >"$log"
	"$on" n1 "$out/bin/mom" -nodes n1,n1,n2,n2,n3,n4 -dir "$out" "$weftrun" "$@" &
	mom=$!
	await_text "$text" "$count"
}

# tm_ended CODE: the job in the background ends with that code, and nothing is left.
tm_ended() {
	wait "$mom"
	local status=$?
	got=$(<"$log")
	printf '%s\n' "$got"
	(( status == $1 )) || { echo "FAIL: exit status $status, want $1"; return 1; }
	empty
}

step_tm() {
	want 0 tm_job --dry-run true && says 'launcher   tm: the way of PBS' 'TM_SPAWN 2 ' && want 0 tm_job "$out/bin/mesh" &&
		says 'rank 0 of 6 on n1 is right' 'rank 3 of 6 on n2 is right' 'rank 5 of 6 on n4 is right' && empty || return
	want 3 tm_job sh -c '[ $WEFT_RANK = 5 ] && exit 3; sleep 100' && says 'rank 5 on host n4 (pid ' 'exit status 3' && empty || return
	# A rank is in the session of its agent, by which PBS finds it.
	want 0 tm_job sh -c 'echo $(hostname) $PBS_JOBID $PBS_NODENUM $(umask) session $(ps -o sid= -p $$) of $(ps -o sid= -p $PPID)' || return
	says 'n1 7.head 0 0077' 'n4 7.head 5 0077'
	[[ $(grep -cE 'session +([0-9]+) of +\1$' <<<"$got") == 6 ]] || { echo "FAIL: ranks in sessions of their own"; return 1; }
	echo '== qdel'
	tm_background 'is right' 6 "$out/bin/mesh" -hold 100s && pkill -TERM -f "^$out/bin/mom " && tm_ended 143 || return
	echo '== qdel of ranks that hear no signal'
	tm_background ready 6 sh -c 'trap "" TERM; echo ready; while :; do sleep 0.1; done' && pkill -TERM -f "^$out/bin/mom " && tm_ended 143 || return
	echo '== kill -9 of weftrun'
	tm_background 'is right' 6 "$out/bin/mesh" -hold 100s && kill -KILL $(pgrep -fx "$weftrun $out/bin/mesh -hold 100s") && tm_ended 137 || return
	echo '== kill -9 of an agent'
	tm_background 'is right' 6 "$out/bin/mesh" -hold 100s && kill -KILL "$(agent n3)" && tm_ended 122 && says 'host n3 was lost, with rank 4' || return
}

step_pbsdsh() {
	want 0 pbs_job --dry-run true && says 'launcher   pbsdsh: PBS does not say how to reach its MoM' &&
		want 0 pbs_job "$out/bin/mesh" && says 'rank 4 of 5 on n3 is right' &&
		want 0 pbs_job sh -c 'echo $PBS_JOBID $PBS_NODENUM $PBS_O_WORKDIR $(umask)' && says "7.head 2 $PWD 0022" && empty && no_keys
}

step_pbs_tmrsh() {
	want 0 pbs_job --launcher pbs_tmrsh "$out/bin/mesh" && says 'rank 4 of 5 on n3 is right' &&
		want 3 pbs_job --launcher pbs_tmrsh sh -c '[ $WEFT_RANK = 4 ] && exit 3; sleep 100' && empty && no_keys
}

step_qrsh() {
	printf 'n1 2 all.q@n1 UNDEFINED\nn2 1 fast.q@n2 <NULL>\nn2 1 all.q@n2 UNDEFINED\n' >"$out/pe"
	want 0 env JOB_ID=9 PE_HOSTFILE="$out/pe" "$0" --job "$out/bin/mesh" && says 'rank 3 of 4 on n2 is right' && empty && no_keys
}

step_blaunch() {
	want 0 env LSB_JOBID=3 LSB_MCPU_HOSTS='n1 2 n4 2' "$0" --job "$out/bin/mesh" && says 'rank 3 of 4 on n4 is right' && empty && no_keys
}

# ours: no process of a job is left, after a little while. Slurm's own stay.
ours() {
	local i
	for i in {1..200}; do
		pgrep -f "$out/bin/|^sleep 1000" >/dev/null || return 0
		sleep 0.1
	done
	echo "FAIL: left:"
	pgrep -af "$out/bin/|^sleep 1000"
	return 1
}

# batch OPTION... : submits the job whose script is standard input, and waits for its output
# in $log to have TEXT COUNT times. The job's number is $id.
batch() {
	local text=$1 count=$2
	shift 2
	log=$out/batch.log
	{ echo '#!/bin/sh'; cat; } >"$out/batch.sh"
	: >"$log"
	id=$("$on" n1 sbatch --parsable -o "$log" "$@" "$out/batch.sh") || return
	for i in {1..200}; do
		(( $(grep -c -- "$text" "$log") >= count )) && got=$(<"$log") && return 0
		sleep 0.1
	done
	echo "FAIL: no $text, $count times, in:"
	cat "$log"
	return 1
}

# A real Slurm: agents by srun. scancel ends everything; a signal that it sends to a job's steps
# arrives once; a killed weftrun and a killed agent leave nothing.
step_slurm() {
	slurm_up "$out/slurm" n1 n2 n3 n4 || return
	trap slurm_down EXIT
	batch 'code 0' 1 -N4 -n7 <<<"$weftrun --dry-run true; $weftrun $out/bin/mesh; echo code \$?" &&
		says 'launcher   srun: the way of Slurm' 'rank 0 of 7 on n1 is right' 'rank 6 of 7 on n' || return
	batch 'code 5' 1 -N3 -n3 <<<"$weftrun sh -c '[ \$WEFT_RANK = 2 ] && exit 5; exec sleep 1000'; echo code \$?" &&
		says 'rank 2 on host n3 (pid ' || return
	# What belongs to a step or to a host does not pass to the ranks; what belongs to the job does.
	batch 'code 0' 1 -N2 -n2 <<<"$weftrun sh -c 'echo \$(hostname) job \$SLURM_JOB_ID step \$SLURM_STEP_ID; ulimit -l'; echo code \$?" && says "n2 job $id step
" || return
	echo '== scancel'
	batch 'is right' 8 -N4 -n8 <<<"$weftrun $out/bin/mesh -hold 100s" && "$on" n1 scancel "$id" && ours || return
	echo '== scancel of ranks that hear no signal'
	batch ready 4 -N4 -n4 <<<"$weftrun sh -c 'trap \"\" TERM; sleep 1000 & echo ready; while :; do sleep 1; done'" && "$on" n1 scancel "$id" && ours || return
	echo '== a signal to all steps'
	batch ready 2 -N3 -n3 <<<"$weftrun --host n2,n3 sh -c 'trap \"echo USR1\" USR1; echo ready; n=0; while [ \$n -lt 30 ]; do sleep 0.1; n=\$((n+1)); done'; echo code \$?" || return
	"$on" n1 scancel -s USR1 "$id"
	sleep 4
	cat "$log"
	(( $(grep -c USR1 "$log") == 2 )) || { echo "FAIL: $(grep -c USR1 "$log") signals in 2 ranks"; return 1; }
	ours || return
	echo '== kill -9 of weftrun'
	batch 'is right' 8 -N4 -n8 <<<"$weftrun $out/bin/mesh -hold 100s; echo code \$?" || return
	kill -KILL $(pgrep -fx "$weftrun $out/bin/mesh -hold 100s") && ours || return
	echo '== kill -9 of an agent'
	batch 'is right' 8 -N4 -n8 <<<"$weftrun $out/bin/mesh -hold 100s; echo code \$?" || return
	local pid
	for pid in $(pgrep -f -- "--as-agent weft-.* -$"); do # they all have the same words
		[[ $(tr '\0' '\n' <"/proc/$pid/environ" | grep -c '^SLURMD_NODENAME=n3$') == 1 && $(readlink "/proc/$pid/exe") == "$weftrun" ]] && kill -KILL "$pid"
	done
	ours || return
	sleep 1
	cat "$log"
	got=$(<"$log") && says 'weftrun: host n3 was lost, with ranks 4-5' 'code 122' || return
	echo '== salloc'
	want 0 "$on" n1 salloc -Q -N2 -n4 "$weftrun" "$out/bin/mesh" && says 'rank 3 of 4 on n2 is right' && ours
}

# ge_batch is batch for Grid Engine, with a number of slots.
ge_batch() {
	local text=$1 count=$2 slots=$3 i
	{ echo '#!/bin/sh'; cat; } >"$ge_dir/home/job.sh"
	log=$ge_dir/home/job.log
	rm -f "$log"
	id=$(ge_on n1 qsub -terse -wd "$ge_dir/home" -pe mpi "$slots" -j y -o "$log" "$ge_dir/home/job.sh") || return
	for i in {1..200}; do
		[[ -e $log ]] && (( $(grep -c -- "$text" "$log") >= count )) && got=$(<"$log") && return 0
		sleep 0.1
	done
	echo "FAIL: no $text, $count times, in:"
	cat "$log"
	ge_on n1 qstat -f
	return 1
}

# A real Grid Engine: agents by qrsh. qdel kills without a word.
step_gridengine() {
	ge_up "$out/ge" n1 n2 n3 n4 || return
	trap ge_down EXIT
	local HOME=$ge_dir/home
	ge_batch 'code 0' 1 7 <<<"cat \$PE_HOSTFILE; $weftrun --dry-run true; $weftrun $out/bin/mesh; echo code \$?" &&
		says 'launcher   qrsh: the way of Grid Engine' 'rank 0 of 7 on n' 'rank 6 of 7 on n' && no_keys || return
	ge_batch 'code 5' 1 6 <<<"$weftrun sh -c '[ \$WEFT_RANK = 5 ] && exit 5; exec sleep 1000'; echo code \$?" && says 'rank 5 on host n' && ours && no_keys || return
	ge_batch 'code 0' 1 4 <<<"echo a word | $weftrun sh -c '[ \$WEFT_RANK = 0 ] && cat; umask; pwd; echo job \$JOB_ID'; echo code \$?" && says 'a word' "$ge_dir/home" "job $id" || return
	echo '== qdel'
	ge_batch 'is right' 8 8 <<<"$weftrun $out/bin/mesh -hold 100s" && ge_on n1 qdel "$id" && ours && no_keys || return
	echo '== kill -9 of weftrun'
	ge_batch 'is right' 8 8 <<<"$weftrun $out/bin/mesh -hold 100s; echo code \$?" || return
	kill -KILL $(pgrep -fx "$weftrun $out/bin/mesh -hold 100s") && ours || return
	echo '== kill -9 of an agent'
	ge_batch 'is right' 8 8 <<<"$weftrun $out/bin/mesh -hold 100s; echo code \$?" || return
	local host
	host=$(sed -n 's/^rank 7 of 8 on \(n.\) .*/\1/p' "$log")
	kill -KILL "$(agent "$host.cluster")" && ours || return
	sleep 1
	cat "$log"
	got=$(<"$log") && says "weftrun: host $host.cluster was lost, with ranks 6-7" 'code 122'
}

# The file with the secret is gone, with the job or before.
no_keys() {
	local left
	left=$(find ~ -maxdepth 1 -name '.weftrun-*')
	[[ -z $left ]] || { echo "FAIL: left: $left"; return 1; }
}

. ci/cluster/direct.sh
. ci/cluster/check.sh
. ci/cluster/control.sh

if [[ ${1-} == --job ]]; then
	shift
	WEFT_CLUSTER=$out job "$@"
	exit
fi
if [[ ${1-} == --step ]]; then # one step, in this process
	WEFT_CLUSTER=$out
	export WEFT_CLUSTER
	"step_$2"
	exit
fi

(( EUID == 0 )) || { echo "cluster: namespaces need root; this is user $EUID" >&2; exit 1; }
wanted=("$@")
(( $# )) || wanted=("${steps[@]}")
for s in "${wanted[@]}"; do
	[[ " ${steps[*]} " == *" $s "* ]] || { echo "cluster: no step $s; there are: ${steps[*]}" >&2; exit 2; }
done

mkdir -p "$out/bin"
go build -o "$out/bin/" ./examples/heat2d ./ci/cluster/mesh ./ci/cluster/mom && CGO_ENABLED=0 go build -o "$out/bin/" ./cmd/weftrun ./cmd/weft || exit 1
exec 8>/run/weft-cluster.lock # the hosts' names are this machine's: one cluster at a time
flock -n 8 || { echo 'cluster: waits for another one on this machine'; flock 8; }
trap 'cluster_down' EXIT
trap 'exit 130' INT TERM
cluster_up "$out" n1 n2 n3 n4 || { echo "cluster: the hosts could not be made" >&2; exit 1; }

passed=0 failed=0 began=$SECONDS
for s in "${wanted[@]}"; do
	start=$SECONDS
	timeout --kill-after=5 "$limit" bash "$0" --step "$s" >"$out/$s.log" 2>&1 </dev/null 8>&-
	status=$?
	if (( status == 0 )); then
		passed=$((passed + 1))
		printf '%-14s %3d s  ok\n' "$s" $((SECONDS - start))
	else
		failed=$((failed + 1))
		printf '%-14s %3d s  FAILED, exit status %d; the end of %s:\n' "$s" $((SECONDS - start)) "$status" "$out/$s.log"
		tail -n 40 "$out/$s.log" | sed 's/^/    /'
		cluster_down # the next step finds empty hosts
		cluster_up "$out" n1 n2 n3 n4
	fi
done
echo "cluster: $passed passed, $failed failed, $((SECONDS - began)) s"
(( failed == 0 && passed > 0 ))
