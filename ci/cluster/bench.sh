#!/usr/bin/env bash
# How long jobs on several hosts take to start and end, on the hosts of lib.sh, over the ssh
# shim:
#
#   * an empty program on 4 hosts, 2 ranks on each, beside Open MPI's mpirun: /bin/true, and one that
#     joins the job and leaves it (weft.Main; MPI_Init and MPI_Finalize)
#   * 200 hosts with a rank each, which are other names for these four
#
#   ci/cluster/bench.sh [ROUNDS]
#
# It needs root; the first part needs Debian's openmpi-bin and libopenmpi-dev.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
readonly root=$PWD out=$PWD/out/cluster rounds=${1:-11}
. ci/cluster/lib.sh
(( EUID == 0 )) || { echo "bench: namespaces need root; this is user $EUID" >&2; exit 1; }

mkdir -p "$out/bin"
cat >"$out/empty.c" <<'C'
#include <mpi.h>
int main(int argc, char **argv) { MPI_Init(&argc, &argv); MPI_Finalize(); return 0; }
C
go build -o "$out/bin/" ./ci/cluster/empty && CGO_ENABLED=0 go build -o "$out/bin/" ./cmd/weftrun && mpicc -o "$out/bin/empty-mpi" "$out/empty.c" || exit 1
exec 8>/run/weft-cluster.lock # as in test.sh
flock -n 8 || { echo 'bench: waits for a cluster on this machine'; flock 8; }
trap cluster_down EXIT
trap 'exit 130' INT TERM
cluster_up "$out" n1 n2 n3 n4 || exit 1

# on_n1 COMMAND...: as a user on n1 types it, where ssh is the shim.
on_n1() {
	"$root/ci/cluster/on" n1 env PATH="$root/ci/cluster/shims:/usr/bin:/bin:/usr/sbin:/sbin" "$@" </dev/null 8>&-
}

# milliseconds COMMAND...: how long it takes; it must succeed.
milliseconds() {
	local began=${EPOCHREALTIME/./} log=$out/bench.log
	"$@" >"$log" 2>&1 || { echo "bench: failed: $*" >&2; cat "$log" >&2; return 1; }
	local ended=${EPOCHREALTIME/./}
	echo $(( (ended - began) / 1000 ))
}

hosts=n1:2,n2:2,n3:2,n4:2
weft=("$out/bin/weftrun" --host "$hosts")
mpi=(mpirun --allow-run-as-root --host "$hosts" -np 8 --oversubscribe --bind-to none --mca plm rsh --mca plm_rsh_agent 'ssh -o BatchMode=yes'
	--mca btl self,vader,tcp --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0)
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
least() { sort -n | head -1; }

# versus NAME PROGRAM MPI-PROGRAM: both in turn, so that both have the same machine.
versus() {
	local i w=() m=() t
	for (( i = 0; i < rounds; i++ )); do
		t=$(milliseconds on_n1 "${weft[@]}" "$2") || return 1
		w+=("$t")
		t=$(milliseconds on_n1 "${mpi[@]}" "$3") || return 1
		m+=("$t")
	done
	local wm mm
	wm=$(printf '%s\n' "${w[@]}" | median)
	mm=$(printf '%s\n' "${m[@]}" | median)
	printf '%-28s weftrun %4d ms (least %4d)   mpirun %4d ms (least %4d)   ratio %s\n' "$1" "$wm" "$(printf '%s\n' "${w[@]}" | least)" \
		"$mm" "$(printf '%s\n' "${m[@]}" | least)" "$(awk "BEGIN { printf \"%.2f\", $wm / $mm }")"
}

echo "4 hosts, 8 ranks, start to end, median of $rounds, $(nproc) cores, $(mpirun --version | head -1):"
versus /bin/true /bin/true /bin/true && versus 'joins and leaves' "$out/bin/empty" "$out/bin/empty-mpi" || exit 1

names=()
for n in {1..200}; do names+=("m$n"); ln -sf "/run/netns/weft-n$(( n % 4 + 1 ))" "/run/netns/weft-m$n"; done
trap 'rm -f /run/netns/weft-m*; cluster_down' EXIT
many=$(IFS=,; echo "${names[*]}")
t=$(milliseconds on_n1 "$out/bin/weftrun" --verbose --host "$many" sh -c 'echo rank $WEFT_RANK reports') || exit 1
count=$(grep -c '^rank [0-9]* reports$' "$out/bench.log")
echo "200 hosts, 200 ranks: $count ranks reported, start to end $t ms"
grep -o '200 agents: .*\|199 agents: .*' "$out/bench.log"
(( count == 200 && t < 10000 )) || { echo 'bench: FAIL: not all 200 ranks reported within 10 s'; exit 1; }
