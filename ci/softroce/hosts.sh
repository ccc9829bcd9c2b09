#!/usr/bin/env bash
# A job on two hosts, over RDMA between them: weftrun starts an agent on the
# other VM by ssh, and messages go over the wire between their devices. For pair.sh:
#
#   ci/softroce/pair.sh 'ci/softroce/hosts.sh a' 'ci/softroce/hosts.sh b'
#
# A runs weftrun, B an ssh server. bin/ has weftrun and the examples.
set -uo pipefail
readonly role=$1 keys=out/softroce/ssh bin=$PWD/bin
got=''

ok() { echo "ok: $*"; }
fail() { echo "FAIL: $*"; echo "$got"; exit 1; }

# job SECONDS CODE ARGUMENT...: weftrun with these arguments, which ends with that code.
job() {
	local code status
	code=$2
	got=$(timeout "$1" "$bin/weftrun" --launcher ssh "${@:3}" 2>&1)
	status=$?
	(( status == code )) || fail "exit status $status, want $code: weftrun ${*:3}"
}
says() { local text; for text; do [[ $got == *"$text"* ]] || fail "the output lacks: $text"; done; }

printf '10.77.0.1 softroce-a\n10.77.0.2 softroce-b\n' >>/etc/hosts
if [[ $role == b ]]; then
	meet keys || exit
	rm -f /root/.bashrc /root/.bash_profile /root/.profile # this machine's own may take long; the VM's copy is gone with it
	mkdir -p /root/.ssh && chmod 700 /root/.ssh && chown root:root /root /root/.ssh
	cp "$keys/id.pub" /root/.ssh/authorized_keys && chmod 600 /root/.ssh/authorized_keys
	dropbearkey -t ed25519 -f /tmp/hostkey >/dev/null 2>&1
	dropbear -F -E -s -r /tmp/hostkey -p 22 2>/tmp/dropbear.log &
	server=$!
	until [[ -n $(ss -Hltn 'sport = :22') ]]; do
		kill -0 "$server" 2>/dev/null || { cat /tmp/dropbear.log; exit 1; }
		sleep 0.1
	done
	meet server || exit
	meet left || exit
	left=$(pgrep -a -f 'weftrun|heat2d')
	[[ -z $left ]] || { echo "FAIL: left on this host: $left"; cat /tmp/dropbear.log; exit 1; }
	meet looked || exit # until here the other side starts no job
	meet vanish || exit
	vanish
fi

rm -rf "$keys" && mkdir -p "$keys" && ssh-keygen -q -t ed25519 -N '' -f "$keys/id" || exit
meet keys || exit
meet server || exit
mkdir -p /root/.ssh && cp "$keys/id" /root/.ssh/id_ed25519 && chmod 600 /root/.ssh/id_ed25519
printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' >/root/.ssh/config

# One rank on each host; two on each, where messages inside a host take shared memory.
job 120 0 --host softroce-a:1,softroce-b:1 -n 2 "$bin/heat2d" -check -size 96 -steps 50
says 'verbs between hosts' 'max difference to the serial solution: 0'
ok "2 ranks on 2 hosts: $(grep -o 'transport: .*' <<<"$got")"
job 120 0 --host softroce-a:2,softroce-b:2 -n 4 "$bin/heat2d" -check -size 96 -steps 50
says 'shm inside a host, verbs between hosts' 'max difference to the serial solution: 0'
ok "4 ranks on 2 hosts: $(grep -o 'transport: .*' <<<"$got")"

# A wire that loses a packet in twenty: slower, and right.
relay set drop=0.05 || exit
job 120 0 --host softroce-a:1,softroce-b:1 -n 2 "$bin/heat2d" -check -size 96 -steps 50
says 'verbs between hosts' 'max difference to the serial solution: 0'
ok "2 ranks over a wire that loses 5 %: $(relay stats | grep -oE 'dropped [0-9]+' | tr '\n' ' ')"
relay clear || exit
meet left || exit
meet looked || exit

# The other host loses its power in the middle. Whoever sees it first, the queue pair or
# the launcher, names it within 12 seconds.
sent() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
before=$(sent)
"$bin/weftrun" --launcher ssh --host softroce-a:1,softroce-b:1 -n 2 "$bin/heat2d" -size 96 -steps 1000000 >/tmp/job.log 2>&1 &
launcher=$!
until (( $(sent) > before + 200 )); do
	kill -0 "$launcher" 2>/dev/null || { got=$(</tmp/job.log); fail "the job has ended"; }
	sleep 0.2
done
meet vanish || exit
start=$SECONDS
wait "$launcher"
status=$? took=$((SECONDS - start)) got=$(</tmp/job.log)
(( status == 1 || status == 122 )) || fail "exit status $status, want 1 or 122"
[[ $got == *'rank 1 failed: verbs: '* || $got == *'host softroce-b'* ]] || fail "nobody names rank 1 or its host"
(( took <= 14 )) || fail "it took $took s"
ok "a host that vanished is reported after $took s: $(grep -m1 -oE 'rank 1 failed: verbs:[^;]*|.*host softroce-b.*' <<<"$got")"
