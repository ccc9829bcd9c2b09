#!/usr/bin/env bash
# What `make test-rdma` runs: everything that wants an RDMA device. Builds the
# programs here, runs the steps one after another in one VM (or on this host, if it
# has a device; see run.sh), then those that want a wire in two VMs.
#
#   ci/softroce/test.sh [STEP...]    without names: all
#   ci/softroce/test.sh --one        all that one VM, or this host, is enough for
#   ci/softroce/test.sh --two        all that want two VMs
#
# A step's output is in out/softroce/test/STEP.log, and shown when it fails. A step
# that moves no packet through the device fails. Tests that a step skipped are named.
#
# To add a step, add a line to the list below; a step of tests needs its package in
# `packages`, too. Keep all of them together under 8 minutes.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
export programs=$PWD/out/softroce/test bin=$PWD/bin # for the steps
readonly programs bin
readonly device=${SOFTROCE_DEVICE-}

# Packages whose tests run in the VM, as NAME=PATH: the program is $programs/NAME.test.
packages=(
	ibverbs=./cgo/ibverbs
	verbs=./internal/transport/verbs
	weft=.
)

# The steps in the VM: NAME, SECONDS it may take, DIRECTORY, COMMAND (with this
# repository's bin/ in PATH). quiet_step is for what need not move packets.
run_steps() {
	# The provider: rdmatest on the device, and what can go wrong there. Tests that compile something need no device,
	# and take minutes in a VM: they find no compiler here.
	step ibverbs 240 cgo/ibverbs 'CC=none PATH=/usr/sbin:/usr/bin:/sbin:/bin $programs/ibverbs.test -test.v -test.timeout 230s'
	# The transport: transporttest on the device.
	step verbs 240 internal/transport/verbs '$programs/verbs.test -test.v -test.timeout 230s -test.run Device'
	# One-sided windows, in processes of their own; 2 and 3 ranks, because emulated ones are slow. The other
	# ways of windows need no device.
	step windows 240 . 'WEFT_TEST_WEFTRUN=$bin/weftrun WEFT_TEST_TRANSPORTS=verbs $programs/weft.test -test.v -test.timeout 230s -test.run "^TestWindowProcesses$/^verbs_$/./^[23]$"'
	# Collectives in every form, by every algorithm, in processes of their own; few ranks, because all share two emulated cores.
	step collectives 240 . 'WEFT_TEST_WEFTRUN=$bin/weftrun WEFT_TEST_TRANSPORTS=verbs $programs/weft.test -test.v -test.timeout 230s -test.run "^TestCollectiveProcesses$/^verbs$/(forms|long|counts)/^2$|^TestCollectiveProcesses$/^verbs$/(halo|same|exact|panic)/^3$"'
	# Whole programs, as a user starts them.
	quiet_step info 60 . 'weft info'
	quiet_step heat2d-1 120 out/softroce/test 'weftrun -n 1 --transport verbs heat2d -check -size 96 -steps 60'
	step heat2d-2 120 out/softroce/test 'weftrun -n 2 --transport verbs heat2d -check -size 96 -steps 60'
	step heat2d-4 120 out/softroce/test 'weftrun -n 4 --transport verbs heat2d -check -size 96 -steps 60'
	# What a user sees where verbs cannot work. It takes the device away, so it is the last.
	quiet_step refusals 120 . 'ci/softroce/refusals.sh'
}

# The steps with two VMs: NAME, SECONDS, OPTIONS of pair.sh, COMMAND OF A, COMMAND OF B.
run_pair_steps() {
	pair_step wire 240 '' 'ci/softroce/wire.sh a' 'ci/softroce/wire.sh b'
	pair_step hosts 240 '' 'ci/softroce/hosts.sh a' 'ci/softroce/hosts.sh b'
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

quiet_step() { quiet=1 step "$@"; }
step() {
	local name=$1 start=$SECONDS status=0 log=$programs/$1.log before after
	is_wanted "$name" || return 0
	read -ra before <<<"$(packets "$device")"
	(
		# QUIT, for the stacks of a Go program.
		cd "$3" && timeout --signal=QUIT --kill-after=10 "$2" bash -c "$4"
	) >"$log" 2>&1 </dev/null || status=$?
	(( status != 124 && status != 137 )) || echo "stopped after $2 s" >>"$log"
	read -ra after <<<"$(packets "$device")"
	local sent=$((after[0] - before[0])) received=$((after[1] - before[1]))
	if (( status == 0 && ! ${quiet:-0} && (sent == 0 || received == 0) )); then
		status=1
		echo "no packet went through $device" >>"$log"
	fi
	local note="+$sent +$received packets"
	[[ -e /sys/class/infiniband/$device ]] || note="$device is gone"
	report "$name" "$start" "$status" "$log" "$note"
}

# pair_step runs here.
pair_step() {
	local name=$1 start=$SECONDS status=0 log=$programs/$1.log
	is_wanted "$name" || return 0
	# shellcheck disable=SC2086
	ci/softroce/pair.sh --require-traffic --timeout "$2" $3 "$4" "$5" >"$log" 2>&1 || status=$?
	report "$name" "$start" "$status" "$log" "$(grep -c '| ok: ' "$log") checks"
}

{ # read whole before it runs, so that an editor does no harm
if [[ ${1-} == --inside ]]; then
	shift
	wanted=("$@")
	# shellcheck source=ci/softroce/counters.sh
	. ci/softroce/counters.sh
	export WEFT_RDMA_DEVICE=$device PATH=$bin:$PATH
	! grep -q "QEMU TCG" /proc/cpuinfo || export WEFT_TEST_EMULATED=1
	run_steps
	echo "$passed $failed" >"$programs/inside"
	(( failed == 0 ))
	exit
fi

wanted=("$@")
# shellcheck disable=SC2329 # called by what follows
names() (
	step() { echo "$1"; }
	quiet_step() { echo "$1"; }
	pair_step() { echo "$1"; }
	[[ $1 == two ]] || run_steps
	[[ $1 == one ]] || run_pair_steps
)
case ${1-} in
--one | --two) (( $# == 1 )) || { echo "test-rdma: $1 takes no names" >&2; exit 2; }; mapfile -t wanted < <(names "${1#--}") ;;
'') mapfile -t wanted < <(names all) ;;
esac
for name in "${wanted[@]}"; do
	grep -qxF "$name" <(names all) || { echo "test-rdma: no step $name; there are:" $(names all) >&2; exit 2; }
done
ci/setup.sh go verbs softroce || exit
mkdir -p "$programs"
(cd "$programs" && rm -f inside "${wanted[@]/%/.log}")
start=$SECONDS
for p in "${packages[@]}"; do
	CGO_ENABLED=1 go test -c -o "$programs/${p%%=*}.test" "${p#*=}" || exit
done
CGO_ENABLED=1 go build -o bin/ ./cmd/... ./examples/... || exit
echo "built in $((SECONDS - start)) s"

if grep -qxFf <(printf '%s\n' "${wanted[@]}") <(names one); then
	ci/softroce/run.sh --timeout 840 -- ci/softroce/test.sh --inside "${wanted[@]}" || failed=$((failed + 1))
	read -r p f _ <"$programs/inside" || { p=0 f=0; }
	passed=$((passed + p))
	(( f == 0 )) || failed=$f
fi
run_pair_steps
echo "$passed steps passed, $failed failed, in $((SECONDS - start)) s"
(( failed == 0 && passed > 0 ))
exit
}
