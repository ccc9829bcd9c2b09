# Hosts on one machine: network namespaces on a bridge. To be sourced by bash.
#
#   cluster_up DIRECTORY HOST...   makes the hosts; DIRECTORY is for their files
#   cluster_down                   ends what runs on them, and removes them
#   cluster_left                   prints the processes that run on them
#
# After cluster_up WEFT_CLUSTER is set, and ci/cluster/on runs commands on a host.
# Everything has a name that begins with weft-, and one cluster runs at a time.

readonly cluster_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly cluster_net=10.77.0

cluster_up() {
	WEFT_CLUSTER=$1
	export WEFT_CLUSTER
	shift
	cluster_hosts=("$@")
	cluster_down
	mkdir -p "$WEFT_CLUSTER"
	local n=10 host
	echo '127.0.0.1 localhost' >"$WEFT_CLUSTER/hosts"
	# The bridge is in a namespace of its own: nothing of this machine's network changes.
	ip netns add weft-switch || return
	ip -n weft-switch link add br0 type bridge && ip -n weft-switch link set br0 up || return
	for host; do
		n=$((n + 1))
		echo "$cluster_net.$n $host.cluster $host" >>"$WEFT_CLUSTER/hosts"
		ip netns add "weft-$host" || return
		ip -n "weft-$host" link set lo up || return
		ip -n "weft-$host" link add eth0 type veth peer name "$host" netns weft-switch || return
		ip -n weft-switch link set "$host" master br0 up || return
		ip -n "weft-$host" addr add "$cluster_net.$n/24" dev eth0 || return
		ip -n "weft-$host" link set eth0 up || return
	done
}

# cluster_link HOST up|down: the cable between a host and the switch. What hosts have learned of a
# cable that was pulled is forgotten when it is back.
cluster_link() {
	local ns
	ip -n weft-switch link set "$1" "$2"
	[[ $2 == up ]] || return
	for ns in /run/netns/weft-*; do ip -n "${ns##*/}" neigh flush all; done
}

cluster_left() {
	local ns
	for ns in /run/netns/weft-*; do
		[[ -e $ns ]] || continue
		ip netns pids "${ns##*/}" | while read -r pid; do
			[[ -r /proc/$pid/cmdline ]] && echo "$pid on ${ns##*/weft-}: $( { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null)"
		done
	done
}

cluster_down() {
	local ns pids
	for ns in /run/netns/weft-*; do
		[[ -e $ns ]] || continue
		pids=$(ip netns pids "${ns##*/}")
		[[ -z $pids ]] || kill -KILL $pids 2>/dev/null
		ip netns del "${ns##*/}"
	done
}
