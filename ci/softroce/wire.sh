#!/usr/bin/env bash
# The test of the wire between two VMs, by perftest: that it carries RDMA, also
# when it loses and reorders packets, and that a cut ends a transfer with an error. For pair.sh:
#
#   ci/softroce/pair.sh 'ci/softroce/wire.sh a' 'ci/softroce/wire.sh b'
#
# A serves, B asks, and holds the wire.
set -uo pipefail
# shellcheck source=ci/softroce/counters.sh
. "$(dirname "$0")/counters.sh"
readonly role=$1 device=rxe0
log=$(mktemp)

ok() { echo "ok: $*"; }
fail() { echo "FAIL: $*"; [[ ! -s $log ]] || cat "$log"; exit 1; }

# exchange PROGRAM OPTION...: one run of perftest between the two; B prints its row of figures.
exchanges=0
exchange() {
	local port=$((18600 + exchanges++)) server
	if [[ $role == a ]]; then
		timeout 60 "$1" -d $device -F -p $port "${@:2}" >"$log" 2>&1 &
		server=$!
		until [[ -n $(ss -Hltn "sport = :$port") ]]; do
			kill -0 "$server" 2>/dev/null || fail "$1 does not start"
			sleep 0.1
		done
		meet "exchange$exchanges" || exit
		wait "$server" || fail "$1 as server: exit status $?"
	else
		meet "exchange$exchanges" || exit
		timeout 60 "$1" -d $device -F -p $port "${@:2}" "$SOFTROCE_PEER" >"$log" 2>&1 || fail "$1: exit status $?"
		awk '/^ *#bytes/ { rows = 1; next } /^---/ { rows = 0 } rows' "$log"
	fi
}

# lost: the number of frames that the relay has lost, both ways. B only.
lost() { relay stats | grep -oE '(dropped|cut) [0-9]+' | awk '{ n += $2 } END { print n }'; }

write=(ib_write_bw -s 65536 -n 200)
exchange "${write[@]}"
exchange ib_send_lat -s 8 -n 200
[[ $role == a ]] || { [[ $(lost) == 0 ]] && ok "a wire that does nothing loses nothing" || fail "frames lost: $(lost)"; }

[[ $role == a ]] || relay set drop=0.01 || exit
exchange "${write[@]}"
[[ $role == a ]] || { (( $(lost) >= 5 )) && ok "ib_write_bw gets over $(lost) lost frames" || fail "only $(lost) frames were lost"; }

[[ $role == a ]] || relay set drop=0 reorder=0.02 dup=0.02 || exit
exchange "${write[@]}"
[[ $role == a ]] || ok "ib_write_bw gets over frames that are late or come twice"

# A cut in the middle. With rdma_cm, because only so perftest lets the number of
# retries be chosen: by default it is 7, which soft-RoCE takes for endless.
[[ $role == a ]] || relay clear || exit
cut=(ib_write_bw -d $device -F -R --retry_count=1 -s 65536 -n 5000 -p 18700)
if [[ $role == a ]]; then
	timeout 60 "${cut[@]}" >/dev/null 2>&1 &
	server=$!
	for (( i = 0; ; i++ )); do
		rdma resource show cm_id | grep -q LISTEN && break
		(( i < 100 )) || fail "ib_write_bw -R does not listen"
		sleep 0.2
	done
	meet cut
	meet over
	kill "$server"
	exit 0
fi
meet cut
read -r before _ <<<"$(packets $device)"
timeout 60 "${cut[@]}" "$SOFTROCE_PEER" >"$log" 2>&1 &
client=$!
for (( i = 0; ; i++ )); do
	read -r now _ <<<"$(packets $device)"
	(( now - before < 1000 )) || break
	kill -0 "$client" 2>/dev/null || fail "ib_write_bw -R ended too early"
	(( i < 300 )) || fail "ib_write_bw -R moved only $((now - before)) packets in 30 s"
	sleep 0.1
done
relay cut || exit
start=${EPOCHREALTIME/./}
for (( i = 0; ; i++ )); do
	grep -q 'Failed status 12' "$log" && break # IBV_WC_RETRY_EXC_ERR
	(( i < 300 )) || fail "no error 12 within 30 s after the cut"
	sleep 0.1
done
ok "error 12 (retries exhausted) $(((${EPOCHREALTIME/./} - start) / 1000)) ms after the cut; $(lost) frames lost"
kill "$client" 2>/dev/null # it waits for an answer to its good-bye
relay join && meet over
