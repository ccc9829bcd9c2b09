# Packet counters of an RDMA device, for the scripts that source this.

# packets DEV: "SENT RECEIVED", over all ports. soft-RoCE counts in hw_counters;
# cards count in counters.
packets() {
	local port sent=0 received=0 s r
	for port in /sys/class/infiniband/"$1"/ports/*; do
		s=0 r=0
		if [[ -r $port/hw_counters/sent_pkts ]]; then
			s=$(cat "$port/hw_counters/sent_pkts") r=$(cat "$port/hw_counters/rcvd_pkts")
		elif [[ -r $port/counters/port_xmit_packets ]]; then
			s=$(cat "$port/counters/port_xmit_packets") r=$(cat "$port/counters/port_rcv_packets")
		fi
		sent=$((sent + s)) received=$((received + r))
	done
	echo "$sent $received"
}

# show_packets DEV "SENT RECEIVED" ["SENT RECEIVED" before]
show_packets() {
	local dev=$1 now before
	read -ra now <<<"$2"
	read -ra before <<<"${3-}"
	printf '%s: sent_pkts %d rcvd_pkts %d' "$dev" "${now[@]}"
	(( ${#before[@]} == 0 )) || printf ' (+%d +%d)' $((now[0] - before[0])) $((now[1] - before[1]))
	echo
}

# moved FILE: whether a device in FILE (lines of "DEV SENT RECEIVED SENT RECEIVED") both sent
# and received packets.
moved() { awk '$4 > $2 && $5 > $3 { found = 1 } END { exit !found }' "$1"; }
