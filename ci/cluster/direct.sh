# Steps of ci/cluster/test.sh: programs that srun or an MPI library's mpiexec starts, without
# weftrun. To be sourced by test.sh.

steps+=(srun_none srun_pmi2 srun_others mpiexec)

# invitations: no file with a secret is left in the home directory.
invitations() {
	local left
	left=$(find ~ -maxdepth 1 -name '.weft-step-*')
	[[ -z $left ]] || { echo "FAIL: left: $left"; return 1; }
}

# in_job TEXT COUNT: standard input as a job of 4 hosts with 2 slots each.
in_job() {
	batch "$1" "$2" -N4 -n8 && ours && invitations
}

# A real Slurm: srun starts the ranks themselves, without PMI and with its own.
step_srun_none() { srun_steps none; }
step_srun_pmi2() { srun_steps pmi2; }

srun_steps() {
	local mpi=$1
	slurm_up "$out/slurm" n1 n2 n3 n4 || return
	trap slurm_down EXIT
	echo "== --mpi=$mpi"
	in_job 'code 0' 2 <<<"srun --mpi=$mpi -N2 -n4 $out/bin/mesh; echo code \$?
		srun --mpi=$mpi -N4 -n4 $out/bin/heat2d -check -size 96 -steps 60 -out ''; echo code \$?" &&
		says 'rank 0 of 4 on n1 is right' 'rank 3 of 4 on n2 is right' 'max difference to the serial solution: 0' 'tcp between hosts' || return
	[[ $mpi == none ]] || { # Slurm's PMI has a version 2 as well
		in_job 'code 0' 1 <<<"PMI_VERSION=2 srun --mpi=$mpi -N2 -n4 $out/bin/mesh; echo code \$?" && says 'rank 3 of 4 on n2 is right' || return
	}
	echo "== --mpi=$mpi: ranks of a host share memory"
	in_job 'code 0' 2 <<<"srun --mpi=$mpi -N2 -n4 $out/bin/heat2d -check -size 96 -steps 60 -out ''; echo code \$?
		srun --mpi=$mpi -N1 -n2 $out/bin/heat2d -check -size 96 -steps 60 -out ''; echo code \$?" &&
		says 'shm inside a host, tcp between hosts' 'shm: all ranks are on this host' || return
	echo "== --mpi=$mpi: two steps at once, and one of one task"
	in_job 'code 0' 3 <<<"srun --mpi=$mpi --exact -n3 -N3 $out/bin/mesh & one=\$!; srun --mpi=$mpi --exact -n5 -N4 $out/bin/mesh; echo code \$?; wait \$one; echo code \$?
		srun --mpi=$mpi -n1 -N1 $out/bin/mesh; echo code \$?" &&
		says 'rank 2 of 3 on' 'rank 4 of 5 on' 'rank 0 of 1 on' || return
	echo "== --mpi=$mpi: a rank is killed"
	local began=$SECONDS
	batch 'is right' 4 -N4 -n8 <<<"srun --mpi=$mpi -N2 -n4 $out/bin/mesh -hold 60s; echo code \$?" || return
	kill -KILL "$(step_rank 3)"
	wanted 'code 137' && ours && invitations || return
	echo "ended after $((SECONDS - began)) s"
	[[ $mpi == pmi2 ]] || says 'rank 3 on host n2 was lost' || return # else Slurm is as fast
	echo "== --mpi=$mpi: rank 0 is killed"
	batch 'is right' 4 -N4 -n8 <<<"srun --mpi=$mpi -N2 -n4 $out/bin/mesh -hold 60s; echo code \$?" || return
	kill -KILL "$(step_rank 0)"
	wanted 'code 137' && ours && invitations || return
	echo "== --mpi=$mpi: scancel"
	batch 'is right' 4 -N4 -n8 <<<"srun --mpi=$mpi -N2 -n4 $out/bin/mesh -hold 60s" && "$on" n1 scancel "$id" && ours && invitations || return
}

# What else there is under srun: errors, and weft check.
step_srun_others() {
	slurm_up "$out/slurm" n1 n2 n3 n4 || return
	trap slurm_down EXIT
	echo '== a rank returns an error'
	in_job '^code 1' 1 <<<"srun -N2 -n2 $out/bin/heat2d -in /none -out ''; echo code \$?" && says '/none' || return
	echo '== a variable is missing, and none of a step is there'
	in_job '^code 1' 2 <<<"srun -N2 -n2 env -u SLURM_PROCID $out/bin/mesh; echo code \$?; $out/bin/mesh; echo code \$?" &&
		says 'SLURM_PROCID="" is not a number, in step 0 of Slurm job' "in a batch job, but not started by weftrun: Slurm job $id" || return
	echo "== the time that is left"
	in_job '^code 0' 1 <<<"srun -N2 -n2 $out/bin/mesh -deadline; echo code \$?" && says 'rank 0 has 9 minutes left' 'rank 1 has 9 minutes left' || return
	echo '== weft check'
	in_job '^code 0' 1 <<<"srun -N2 -n4 $out/bin/weft check --all; echo code \$?" && says 'n1: reach n2: fine' 'n2: reach n1: fine' 'n1: 17 checks' || return
	echo '== without a home directory: PMI needs none'
	in_job '^code' 2 <<<"HOME=/nowhere srun --mpi=pmi2 -N2 -n2 $out/bin/mesh; echo code \$?; HOME=/nowhere srun --mpi=none -N2 -n2 $out/bin/mesh; echo code \$?" &&
		says 'rank 1 of 2 on n2 is right' 'the ranks of a step meet by a file in the home directory, but open /nowhere/' 'but stat /nowhere: no such file' 'srun --mpi=pmi2 does without' 'code 1'
}

# step_rank RANK: the process of that rank of a step.
step_rank() {
	local pid
	for pid in $(pgrep -x mesh); do
		[[ $(tr '\0' '\n' <"/proc/$pid/environ" | grep -cx "SLURM_PROCID=$1") == 1 ]] && echo "$pid" && return
	done
}

# wanted TEXT: the job's output has it within 15 seconds. All of it is in $got then.
wanted() {
	local i
	for i in {1..150}; do
		grep -q -- "$1" "$log" && got=$(<"$log") && printf '%s\n' "$got" && return 0
		sleep 0.1
	done
	echo "FAIL: no $1 in:"
	cat "$log"
	return 1
}

# MPICH's own mpiexec, on this host.
step_mpiexec() {
	local n
	for n in 1 2 3; do
		want 0 mpiexec.hydra -n "$n" "$out/bin/mesh" && says "rank $((n - 1)) of $n on $(hostname) is right" || return
	done
	want 0 env PMI_VERSION=2 mpiexec.hydra -n 3 "$out/bin/mesh" && says "rank 2 of 3 on $(hostname) is right" || return
	want 1 env PMI_FD=7 PMI_SIZE=2 PMI_RANK=0 PMI_VERSION=x "$out/bin/mesh" && says 'PMI_VERSION="x"' || return
	want 0 mpiexec.hydra -n 3 "$out/bin/heat2d" -check -size 96 -steps 60 -out '' && says 'shm: all ranks are on this host' 'max difference to the serial solution: 0' || return
	want 1 env PMI_FD=77 PMI_SIZE=2 PMI_RANK=0 "$out/bin/mesh" && says 'PMI_FD=77, but descriptor 77 is not open' || return
	want 1 env PMI_FD=7 PMI_SIZE=2 "$out/bin/mesh" && says 'PMI_RANK="" is not a number, though PMI_FD is set' || return
	log=$out/mpiexec.log
	mpiexec.hydra -n 3 "$out/bin/mesh" -hold 60s >"$log" 2>&1 &
	local pid=$! i
	for i in {1..100}; do (( $(grep -c 'is right' "$log") == 3 )) && break; sleep 0.1; done
	kill -KILL "$(pgrep -x mesh | tail -n 1)"
	wait "$pid"
	n=$?
	cat "$log"
	(( n != 0 )) && ours
}
