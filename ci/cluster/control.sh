# Steps of ci/cluster/test.sh: the control plane over ZeroMQ. To be sourced by test.sh.

steps+=(zmq zmq_not_built)

# weftrun with ZeroMQ is another one, as the usual one is static.
zmq_weftrun() {
	ci/setup.sh zmq && CGO_ENABLED=1 go build -tags zmq -o "$out/bin/zmq/" ./cmd/weftrun && weftrun=$out/bin/zmq/weftrun
}

step_zmq() {
	zmq_weftrun || return
	want 0 job --control zmq --host "$hosts" "$out/bin/mesh" && says 'rank 0 of 8 on n1 is right' 'rank 7 of 8 on n4 is right' && empty || return
	head -c 650015 /dev/urandom >"$out/input"
	want 0 job --control zmq --host n3,n1 sh -c '[ $WEFT_RANK = 1 ] || exec sha256sum' <"$out/input" && says "$(sha256sum <"$out/input" | cut -d' ' -f1)" && empty || return
	echo '== kill -9 of an agent'
	background 'is right' 8 --control zmq --host "$hosts" "$out/bin/mesh" -hold 100s || return
	kill -KILL "$(agent n3)"
	wait "$launcher"
	local status=$?
	cat "$log"
	(( status == 122 )) || { echo "FAIL: exit status $status, want 122"; return 1; }
	got=$(<"$log") && says 'weftrun: host n3 was lost, with ranks 4-5' && empty || return
	echo '== kill -9 of weftrun'
	background 'is right' 8 --control zmq --host "$hosts" "$out/bin/mesh" -hold 100s || return
	kill -KILL "$launcher"
	wait "$launcher" 2>/dev/null
	empty || return
	echo '== a cable is pulled'
	options=(--control zmq)
	pulled 8 -hold 100s
}

# A weftrun without ZeroMQ says so, here and on another host.
step_zmq_not_built() {
	want 2 job --control zmq --host n1,n2 true && says 'zmq is not built in' 'go build -tags zmq' || return
	local usual=$weftrun
	zmq_weftrun || return
	want 121 job --control zmq --agent "$usual" --host n1,n2 true && says 'no agent on host n2' 'zmq is not built in' 'go build -tags zmq' && empty
}
