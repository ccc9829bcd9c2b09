#!/usr/bin/env bash
# What `make test-rdma` runs: everything that wants an RDMA device. Builds the
# programs here, runs the steps one after another in one VM (or on this host, if it
# has a device; see run.sh), then those that want a wire in two VMs.
#
#   ci/softroce/test.sh [STEP...]    without names: all
#
# A step's output is in out/softroce/test/STEP.log, and shown when it fails. A step
# that moves no packet through the device fails. Tests that a step skipped are named.
#
# To add a step, add a line to the list below; a step of tests needs its package in
# `packages`, too. Keep all of them together under 8 minutes.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
readonly programs=$PWD/out/softroce/test
readonly device=${SOFTROCE_DEVICE-}

# Packages whose tests run in the VM, as NAME=PATH: the program is $programs/NAME.test.
packages=(
	ibverbs=./cgo/ibverbs
	verbs=./internal/transport/verbs
	weft=.
)

# run_steps calls step for each: NAME, SECONDS it may take, DIRECTORY, COMMAND.
run_steps() {
	# The provider: rdmatest on the device, and what can go wrong there.
	step ibverbs 180 cgo/ibverbs '$programs/ibverbs.test -test.v -test.timeout 170s'
	# The transport: transporttest on the device.
	step verbs 180 internal/transport/verbs '$programs/verbs.test -test.v -test.timeout 170s -test.run Device'
	# Whole programs, as a user starts them.
	for n in 2 4; do
		step heat2d-$n 120 out/softroce/test 'weftrun -n '$n' --transport verbs heat2d -check -size 96 -steps 60'
	done
	# What the command says about the device.
	step info 60 . 'weft info'
}

# The two-VM steps: NAME, SECONDS, OPTIONS of pair.sh, COMMAND OF A, COMMAND OF B.
run_pair_steps() {
	pair_step wire 150 '' 'ci/softroce/wire.sh a' 'ci/softroce/wire.sh b'
}

wanted=()
passed=0 failed=0
is_wanted() { (( ${#wanted[@]} == 0 )) || [[ " ${wanted[*]} " == *" $1 "* ]]; }

report() { # NAME START STATUS LOG NOTE
	local took=$((SECONDS - $2)) skipped
	skipped=$(awk '$1 == "---" && $2 == "SKIP:" { printf "%s%s", sep, $3; sep = ", " }' "$4")
	if (( $3 == 0 )); then
		passed=$((passed + 1))
		printf '%-12s %4d s  ok      %s%s\n' "$1" "$took" "$5" "${skipped:+; skipped: $skipped}"
	else
		failed=$((failed + 1))
		printf '%-12s %4d s  FAILED  exit status %d; %s; the end of %s:\n' "$1" "$took" "$3" "$5" "$4"
		tail -n 60 "$4" | sed 's/^/    /'
	fi
}

# step runs in the VM.
step() {
	local name=$1 start=$SECONDS status=0 log=$programs/$1.log before after
	is_wanted "$name" || return 0
	read -ra before <<<"$(packets "$device")"
	(cd "$3" && eval "timeout --signal=QUIT --kill-after=10 $2 $4") >"$log" 2>&1 </dev/null || status=$?
	read -ra after <<<"$(packets "$device")"
	local moved=$((after[0] - before[0])) received=$((after[1] - before[1]))
	if (( status == 0 && (moved == 0 || received == 0) )) && [[ $name != info ]]; then
		status=1
		echo "no packet went through $device" >>"$log"
	fi
	report "$name" "$start" "$status" "$log" "+$moved +$received packets"
}

# pair_step runs here.
pair_step() {
	local name=$1 start=$SECONDS status=0 log=$programs/$1.log
	is_wanted "$name" || return 0
	# shellcheck disable=SC2086
	ci/softroce/pair.sh --require-traffic --timeout "$2" $3 "$4" "$5" >"$log" 2>&1 || status=$?
	report "$name" "$start" "$status" "$log" "$(grep -c '| ok: ' "$log") checks"
}

if [[ ${1-} == --inside ]]; then
	shift
	wanted=("$@")
	# shellcheck source=ci/softroce/counters.sh
	. ci/softroce/counters.sh
	export WEFT_RDMA_DEVICE=$device PATH=$PWD/bin:$PATH
	run_steps
	echo "$passed $failed" >"$programs/inside"
	(( failed == 0 ))
	exit
fi

wanted=("$@")
all=$(step() { echo "$1"; }; pair_step() { echo "$1"; }; run_steps; run_pair_steps)
for name in "${wanted[@]}"; do
	grep -qxF "$name" <<<"$all" || { echo "test-rdma: no step $name; there are: "$all >&2; exit 2; }
done
ci/setup.sh go verbs softroce || exit
rm -rf "$programs"
mkdir -p "$programs"
start=$SECONDS
for p in "${packages[@]}"; do
	CGO_ENABLED=1 go test -c -o "$programs/${p%%=*}.test" "${p#*=}" || exit
done
CGO_ENABLED=1 go build -o bin/ ./cmd/... ./examples/... || exit
echo "built in $((SECONDS - start)) s"

inside() { (wanted=("$@"); step() { is_wanted "$1" && echo x; }; run_steps) | grep -q x; }
if inside "${wanted[@]}"; then
	ci/softroce/run.sh --timeout 600 --require-traffic -- ci/softroce/test.sh --inside "${wanted[@]}" || failed=$((failed + 1))
	read -r p f _ <"$programs/inside" || { p=0 f=0; }
	passed=$((passed + p))
	(( f == 0 )) || failed=$f
fi
run_pair_steps
echo "$passed steps passed, $failed failed, in $((SECONDS - start)) s"
(( failed == 0 && passed > 0 ))
