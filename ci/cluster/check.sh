# A step of ci/cluster/test.sh: weft check, on hosts with something wrong. To be sourced by test.sh.

steps+=(check)

step_check() {
	local weft=$out/bin/weft status
	echo '== nothing wrong'
	want 0 job --host n1:2,n2,n3:2 "$weft" check --all && says 'n1: reach n2: fine' 'n3: reach n1: fine' 'n2: clock of n3: fine' 'all hosts: MTU: fine: 1500 on n1, n2, n3' \
		'n1: libibverbs: unsupported' 'n2: RDMA ports: absent' 'n1: 19 checks' 'n2: 16 checks' 'n3: 16 checks' && empty || return
	echo '== by itself, with --host and --json'
	want 0 "$on" n1 env PATH="$root/ci/cluster/shims:/usr/bin:/bin:/usr/sbin:/sbin" "$weft" check --host n2,n4 --json &&
		says '{"host":"n2","problem":false,' '{"host":"n4","problem":false,' && empty || return
	echo '== another MTU'
	ip -n weft-n2 link set eth0 mtu 1400
	want 1 job --host n1,n2,n3 "$weft" check
	status=$?
	ip -n weft-n2 link set eth0 mtu 1500
	(( status == 0 )) && says 'n1: MTU: problem: eth0 has 1500, and others 1400' 'fix: ip link set eth0 mtu 1400' 'n3: MTU: problem' && empty || return
	echo '== a way that is blocked: packets from n2 to n3 are thrown away, and so are the answers'
	ip -n weft-n2 route add blackhole 10.77.0.13/32
	want 1 job --host n1,n2,n3 "$weft" check
	status=$?
	ip -n weft-n2 route del blackhole 10.77.0.13/32
	(( status == 0 )) && says 'n2: reach n3: problem: 10.77.0.13:' 'n3: reach n2: problem: 10.77.0.12:' 'a firewall between the hosts looks like this; fix: iptables -I INPUT -p tcp -s n3 -j ACCEPT, on n2' \
		'n2: clock of n3: could not tell: the host was not reached' && empty || return
	[[ $got != *'n1: reach n'* ]] || { echo 'FAIL: n1 reaches all'; return 1; }
	echo '== few files'
	want 1 "$on" n1 bash -c "ulimit -n 200 && exec $weftrun -n 2 $weft check" && says 'n1: open files: problem: at most 200 for a rank' && empty
}
