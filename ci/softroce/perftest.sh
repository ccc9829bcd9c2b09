#!/usr/bin/env bash
# Runs one of the perftest programs against itself on this machine, over the
# RDMA device rxe0, and prints its row of figures and nothing else.
#
#   ci/softroce/perftest.sh ib_write_bw|ib_send_lat|... [OPTION...]
#
# Meant for inside of ci/softroce/run.sh. DEVICE in the environment says which
# other device to use.
set -uo pipefail
(( $# )) || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
program=$1 port=$((18600 + RANDOM % 1000))
shift
log=$(mktemp)
options=(-d "${DEVICE:-rxe0}" -F -p "$port")
timeout 120 "$program" "${options[@]}" "$@" >"$log.server" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; rm -f "$log" "$log.server"' EXIT
for (( i = 0; i < 100; i++ )); do
	kill -0 "$server" 2>/dev/null || break
	[[ -n $(ss -Hltn "sport = :$port") ]] && break
	sleep 0.1
done
timeout 120 "$program" "${options[@]}" "$@" 127.0.0.1 >"$log" 2>&1
status=$?
if (( status )); then
	echo "$program failed with exit status $status; the client, then the server:" >&2
	cat "$log" "$log.server" >&2
	exit "$status"
fi
wait "$server" || { status=$?; echo "$program's server failed with exit status $status:" >&2; cat "$log.server" >&2; exit "$status"; }
awk '/^ *#bytes/ { rows = 1; next } /^---/ { rows = 0 } rows' "$log"
