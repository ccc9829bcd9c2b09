# A real Slurm on the hosts of ci/cluster. To be sourced by bash, after lib.sh.
#
#   slurm_up DIRECTORY HOST...   the first host has the controller; all have a daemon
#   slurm_down                   ends all of it
#
# Everything that Slurm writes is in DIRECTORY; it has its own munge, with a key of
# its own. After slurm_up SLURM_CONF is set, and sbatch and its like work on any host.

slurm_up() {
	slurm_dir=$1
	shift
	local head=$1 host sockets
	slurm_down
	rm -rf "$slurm_dir"
	mkdir -p "$slurm_dir/state" || return
	# A socket's name has room for 107 letters, and this directory may be far down.
	sockets=$(mktemp -d /tmp/weft-slurm.XXXXXX) || return
	echo "$sockets" >"$slurm_dir/sockets"
	chmod 755 "$sockets"
	(umask 077; head -c 128 /dev/urandom >"$slurm_dir/munge.key")
	munged --force --key-file="$slurm_dir/munge.key" --socket="$sockets/munge" --pid-file="$slurm_dir/munged.pid" \
		--log-file="$slurm_dir/munged.log" --seed-file="$slurm_dir/munge.seed" || return
	cat >"$slurm_dir/cgroup.conf" <<END
CgroupPlugin=cgroup/v1
CgroupAutomount=no
END
	cat >"$slurm_dir/slurm.conf" <<END
ClusterName=weft
SlurmctldHost=$head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$sockets/munge
StateSaveLocation=$slurm_dir/state
SlurmdSpoolDir=$slurm_dir/spool-%n
SlurmctldPidFile=$slurm_dir/slurmctld.pid
SlurmdPidFile=$slurm_dir/slurmd-%n.pid
SlurmctldLogFile=$slurm_dir/slurmctld.log
SlurmdLogFile=$slurm_dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
KillWait=5
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
SchedulerParameters=sched_interval=1,batch_sched_delay=0
$(for host; do echo "NodeName=$host CPUs=2 RealMemory=500 State=UNKNOWN"; done)
PartitionName=main Nodes=$(IFS=,; echo "$*") Default=YES MaxTime=10 State=UP
END
	export SLURM_CONF=$slurm_dir/slurm.conf
	"$cluster_here/on" "$head" slurmctld -c || return
	for host; do
		"$cluster_here/on" "$host" slurmd -N "$host" || return
	done
	local i
	for i in {1..150}; do
		[[ $("$cluster_here/on" "$head" sinfo -h -o '%T %D' 2>/dev/null) == "idle $#" ]] && return 0
		sleep 0.2
	done
	echo "slurm: the hosts are not idle:"
	"$cluster_here/on" "$head" sinfo -N -l
	tail -n 20 "$slurm_dir"/*.log
	return 1
}

slurm_down() {
	[[ -n ${slurm_dir-} && -d $slurm_dir ]] || return 0
	local file
	for file in "$slurm_dir"/*.pid; do
		[[ -r $file ]] && kill -KILL "$(<"$file")" 2>/dev/null
	done
	[[ -r $slurm_dir/sockets ]] && rm -rf "$(<"$slurm_dir/sockets")"
	return 0
}
