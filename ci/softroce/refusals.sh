#!/usr/bin/env bash
# What a user sees who asks for verbs where it cannot work, or where a rank dies: each
# time an error, which says what happened, where, and what to do. Inside of run.sh:
#
#   ci/softroce/run.sh -- ci/softroce/refusals.sh
#
# It takes the device down and away, so it runs in a VM only, and last of all.
set -uo pipefail
readonly run=(bin/weftrun -n 2 --transport verbs)
failed=0

# refused WHAT CODE COMMAND... -- TEXT...: the command ends with that code and says each text.
refused() {
	local what=$1 code=$2 status got text command=()
	shift 2
	while [[ $1 != -- ]]; do command+=("$1"); shift; done
	shift
	got=$(timeout 60 "${command[@]}" 2>&1 </dev/null)
	status=$?
	if (( status != code )); then
		echo "FAIL: $what: exit status $status, want $code: ${command[*]}"; echo "$got"; failed=$((failed + 1))
		return
	fi
	for text; do
		[[ $got == *"$text"* ]] || { echo "FAIL: $what: the output lacks: $text"; echo "$got"; failed=$((failed + 1)); return; }
	done
	printf '%s\n    %s\n' "ok: $what" "$(grep -m1 -E 'weft(run)?:' <<<"$got" | cut -c1-600)"
}

[[ $(systemd-detect-virt 2>/dev/null; hostname) == *softroce* ]] || { echo "refusals.sh: this is not the VM of ci/softroce"; exit 2; }
hello=(bin/heat2d -check -size 48 -steps 10)

refused 'weft check where all is well' 0 bin/weft check --all -- 'RDMA ports: fine: all 1 are active' 'GIDs: fine' 'memlock: fine'

refused 'a device that is not there' 1 "${run[@]}" --device rxe7 "${hello[@]}" -- 'there is no device rxe7' 'did you mean rxe0' 'weft info'
refused 'a port that is not there' 1 "${run[@]}" --device rxe0:2 "${hello[@]}" -- 'rxe0' 'no port 2' 'weft info'
refused 'no library' 1 env WEFT_IBVERBS_LIB=/nowhere/libibverbs.so "${run[@]}" "${hello[@]}" -- /nowhere/libibverbs.so 'apt-get install libibverbs1'
printf 'int ibv_get_device_list;\n' >/tmp/old.c
gcc -shared -o /tmp/old.so /tmp/old.c
refused 'a library that is too old' 1 env WEFT_IBVERBS_LIB=/tmp/old.so "${run[@]}" "${hello[@]}" -- 'too old' 'upgrade rdma-core'
limited=(setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock prlimit --memlock=65536)
refused 'hardly any locked memory' 1 "${limited[@]}" "${run[@]}" "${hello[@]}" -- 'locked memory' 'ulimit -l unlimited'
refused 'weft check says so before' 1 "${limited[@]}" bin/weft check -- 'memlock: problem: 64 KiB of locked memory' 'fix: ' LimitMEMLOCK=infinity
limited=(setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock prlimit --memlock=6291456)
refused 'little locked memory: it works, and says so' 0 "${limited[@]}" "${run[@]}" "${hello[@]}" -- 'difference to the serial solution: 0' 'ulimit -l unlimited'

ip link set eth0 down
refused 'the port is down' 1 "${run[@]}" "${hello[@]}" -- rxe0:1 down 'ip link set'
refused 'weft check of a port that is down' 1 bin/weft check -- 'RDMA ports: problem: rxe0:1 is 1: DOWN' 'interface: problem' 'fix: ip link set eth0 up'
ip link set eth0 up
ip address show dev eth0 | grep -q 'inet 10' || ip address add 10.77.0.1/24 dev eth0

# A rank that dies is named, by those who send to it and by those who receive from it.
cat >/tmp/die.sh <<'SH'
#!/bin/sh
[ "$WEFT_RANK" = 1 ] && { (sleep 6; kill -9 $$) & }
exec "$@"
SH
chmod +x /tmp/die.sh
start=$SECONDS
refused 'a rank that is killed' 137 bin/weftrun -n 3 --transport verbs /tmp/die.sh bin/heat2d -size 48 -steps 100000000 -- 'rank 1'
(( SECONDS - start <= 6 + 15 )) || { echo "FAIL: it took $((SECONDS - start)) s"; failed=$((failed + 1)); }

rdma link delete rxe0
refused 'no device' 1 "${run[@]}" "${hello[@]}" -- 'no RDMA device' 'rdma link add rxe0 type rxe netdev eth0'

echo "refusals: $failed failed"
(( failed == 0 ))
