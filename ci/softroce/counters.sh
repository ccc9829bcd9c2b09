# Packet counters of RDMA devices, for the scripts that source this (bash on the
# host, busybox in the VM).

# packets DEV: prints "SENT RECEIVED", over all ports. soft-RoCE counts in
# hw_counters, also what loops back; cards count in counters.
packets() (
	sent=0 received=0
	for port in /sys/class/infiniband/"$1"/ports/*; do
		s=0 r=0
		if [ -r "$port/hw_counters/sent_pkts" ]; then
			read -r s <"$port/hw_counters/sent_pkts" && read -r r <"$port/hw_counters/rcvd_pkts"
		elif [ -r "$port/counters/port_xmit_packets" ]; then
			read -r s <"$port/counters/port_xmit_packets" && read -r r <"$port/counters/port_rcv_packets"
		fi
		sent=$((sent + s)) received=$((received + r))
	done
	echo "$sent $received"
)

# show_packets DEV SENT RECEIVED [SENT RECEIVED before]
show_packets() {
	echo "$1: sent_pkts $2 rcvd_pkts $3${4:+ (+$(($2 - $4)) +$(($3 - ${5:-0})))}"
}

# moved FILE: whether a device in FILE (lines of DEV SENT RECEIVED and the same
# from before) both sent and received packets.
moved() { awk '$2 > $4 && $3 > $5 { found = 1 } END { exit !found }' "$1"; }
