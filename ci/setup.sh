#!/usr/bin/env bash
# Makes sure that what a target needs is installed, and says what it installs.
# Silent and offline when everything is there already.
#
#   ci/setup.sh GROUP...
#
# Groups:
#   go       Go 1.26 or later, and the Go modules of this repository
#   cc       a C compiler and the C library's headers (race detector, cgo/)
#   tools    the developer tools of ci/tools/go.mod
#   compare  Open MPI and MPICH, to measure against
#   verbs    the headers of libibverbs (cgo/ibverbs), its drivers and tools
#   zmq      the headers of libzmq (cgo/zmq)
#   softroce QEMU and what else ci/softroce needs for a VM with an RDMA device
#   cluster  namespaces, Slurm and what else ci/cluster needs for hosts on one machine
set -euo pipefail
cd "$(dirname "$0")/.."

readonly need_minor=26 # keep in step with go.mod
readonly groups='go cc tools compare verbs zmq softroce cluster'

die() { printf 'setup: %s\n' "$@" >&2; exit 1; }
say() { printf 'setup: %s\n' "$*"; }

packages=()

# need PROBE PACKAGE: PACKAGE is wanted unless the command or file PROBE exists.
need() {
	case $1 in
	/*) [[ -e $1 ]] || packages+=("$2") ;;
	*) command -v "$1" >/dev/null || packages+=("$2") ;;
	esac
}

install_packages() {
	(( ${#packages[@]} )) || return 0
	local list="${packages[*]}" sudo=()
	command -v apt-get >/dev/null ||
		die "missing: $list (Debian's names), and there is no apt-get here;" \
			"install what your system calls them, then try again"
	if (( EUID != 0 )); then
		command -v sudo >/dev/null && sudo -n true 2>/dev/null ||
			die "missing Debian packages: $list" "you are not root; run this, then try again:" \
				"  sudo apt-get install -y $list"
		sudo=(sudo -n)
	fi
	say "installing Debian packages: $list"
	local log
	log=$(mktemp)
	if ! { "${sudo[@]}" apt-get update &&
		"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}"; } \
		>"$log" 2>&1 </dev/null; then
		tail -n 20 "$log" >&2
		die "apt-get could not install: $list (whole log: $log)"
	fi
	rm -f "$log"
}

check_go() {
	command -v go >/dev/null ||
		die "Go is not installed, or not on PATH; weft needs Go 1.$need_minor or later: https://go.dev/dl/"
	local v minor
	v=$(GOTOOLCHAIN=local go env GOVERSION)
	[[ $v =~ ^go1\.([0-9]+) ]] || return 0 # a development build: let the go command judge
	minor=${BASH_REMATCH[1]}
	(( minor >= need_minor )) && return 0
	# From 1.21 on an older go command fetches the right toolchain by itself,
	# unless it was told not to.
	(( minor >= 21 )) && [[ $(go env GOTOOLCHAIN) != local* ]] && return 0
	die "$(command -v go) is $v; weft needs Go 1.$need_minor or later: https://go.dev/dl/"
}

# modules DIR WHAT: downloads the modules of DIR unless they are all cached.
modules() {
	(
		cd "$1"
		GOFLAGS=-mod=readonly GOPROXY=off go list -deps -test "${@:3}" >/dev/null 2>&1 && exit 0
		say "downloading $2"
		go mod download || die "go mod download failed in $PWD; is there a network?"
	)
}

(( $# )) || die "usage: ci/setup.sh GROUP...  (groups: $groups)"
for group in "$@"; do
	case $group in
	go) check_go; modules . "Go modules" ./... ;;
	cc) need gcc gcc; need /usr/include/stdio.h libc6-dev ;;
	tools) check_go; modules ci/tools "developer tools (ci/tools/go.mod)" tool ;;
	compare)
		need ip iproute2
		need unshare util-linux
		need gcc gcc
		need /usr/include/stdio.h libc6-dev
		need mpirun.openmpi openmpi-bin
		need mpicc.openmpi libopenmpi-dev
		need mpirun.mpich mpich
		need mpicc.mpich libmpich-dev
		;;
	verbs)
		need gcc gcc
		need /usr/include/stdio.h libc6-dev
		need /usr/include/infiniband/verbs.h libibverbs-dev
		need /etc/libibverbs.d ibverbs-providers
		need ibv_devinfo ibverbs-utils
		need rdma iproute2
		;;
	zmq)
		need gcc gcc
		need /usr/include/stdio.h libc6-dev
		need pkg-config pkg-config
		need /usr/include/zmq.h libzmq3-dev
		;;
	softroce)
		need qemu-system-x86_64 qemu-system-x86
		need busybox busybox-static
		need /sbin/modprobe kmod
		need cpio cpio
		need xz xz-utils
		need rdma iproute2
		need /etc/libibverbs.d ibverbs-providers
		need ibv_devinfo ibverbs-utils
		need ib_send_lat perftest
		need dropbear dropbear-bin
		need ssh openssh-client
		;;
	cluster)
		need ip iproute2
		need nsenter util-linux
		need pgrep procps
		need setsid util-linux
		need slurmctld slurmctld
		need slurmd slurmd
		need srun slurm-client
		need munged munge
		need mpiexec.hydra mpich
		need /usr/lib/x86_64-linux-gnu/libdb-5.3.so libdb5.3 # Grid Engine's, which ci/cluster unpacks for itself
		need /usr/lib/x86_64-linux-gnu/libtirpc.so.3 libtirpc3
		need /usr/lib/x86_64-linux-gnu/libhwloc.so.15 libhwloc15
		;;
	*) die "unknown group: $group (groups: $groups)" ;;
	esac
done
install_packages
