# What run.sh and pair.sh have in common: the kernel, the initramfs, booting a
# VM. To be sourced from the repository's root. Caller-visible names start with sr_.

readonly sr_repo=$PWD
readonly sr_here=$sr_repo/ci/softroce
readonly sr_share=$sr_repo/out         # writable from the VM
readonly sr_cache=$sr_share/softroce   # kernel/, initramfs.cpio, run/

# In the order of loading; what these need is added. Without crc32_generic
# `rdma link add` fails.
readonly sr_wanted_modules=(virtio_pci virtio_net virtio_console virtio_rng 9p 9pnet_virtio overlay
	crc32_generic crc32_pclmul ib_uverbs rdma_rxe rdma_ucm)

sr_die() { printf 'softroce: %s\n' "$@" >&2; exit 125; }
sr_say() { (( ${sr_quiet:-0} )) || printf 'softroce: %s\n' "$*" >&2; }

sr_usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$1" | sed '$d'; }
sr_number() { [[ $2 =~ ^[0-9]{1,9}$ ]] && (( 10#$2 >= $3 && 10#$2 <= $4 )) || sr_die "$1 wants a number from $3 to $4, not '$2'"; }

# sr_find_device: whether this host has RDMA devices that can be used, or can have
# soft-RoCE. Sets sr_devices, and sr_found to how that was found. What it adds to
# the host, sr_forget_device takes away.
sr_added=()
sr_find_device() {
	local port d
	sr_devices=()
	for port in /sys/class/infiniband/*/ports/*; do
		[[ $(cat "$port/state" 2>/dev/null) == *ACTIVE* ]] || continue
		d=${port#/sys/class/infiniband/} d=${d%%/*}
		[[ " ${sr_devices[*]} " == *" $d "* ]] || sr_devices+=("$d")
	done
	if (( ${#sr_devices[@]} )); then
		sr_found="it is active"
		for d in /dev/infiniband/uverbs*; do
			[[ -r $d && -w $d ]] && return 0
		done
		return 1
	fi
	(( EUID == 0 )) && modprobe -n rdma_rxe 2>/dev/null || return 1
	# On a card of its own, which leads nowhere: soft-RoCE loops back past it.
	modprobe crc32_generic 2>/dev/null
	modprobe dummy 2>/dev/null
	if modprobe rdma_rxe && modprobe ib_uverbs && ip link add softroce0 mtu 9000 type dummy && sr_added+=(link) &&
		ip addr add 10.77.0.1/24 dev softroce0 && ip link set softroce0 up &&
		rdma link add rxe0 type rxe netdev softroce0 && sr_added+=(rxe); then
		sr_devices=(rxe0)
		sr_found="soft-RoCE, added for this"
		return 0
	fi 2>/dev/null
	sr_forget_device
	return 1
}

sr_forget_device() {
	[[ " ${sr_added[*]-} " == *" rxe "* ]] && rdma link delete rxe0
	[[ " ${sr_added[*]-} " == *" link "* ]] && ip link del softroce0
	sr_added=()
}

# sr_fetch_kernel: Debian's kernel package, unpacked into the cache, never installed. The
# package that linux-image-amd64 depends on when it is fetched. `make clean` removes it.
sr_fetch_kernel() {
	[[ -e $sr_cache/kernel/boot/vmlinux ]] && return 0
	command -v apt-get >/dev/null || sr_die "the VM's kernel comes from Debian, and there is no apt-get here"
	local package log=$sr_cache/fetch.log
	package=$(sr_kernel_package)
	if [[ -z $package ]]; then
		(( EUID == 0 )) && apt-get update >"$log" 2>&1
		package=$(sr_kernel_package)
	fi
	[[ -n $package ]] || sr_die "apt knows no linux-image-amd64; run apt-get update as root, then try again"
	sr_say "downloading the VM's kernel, $package"
	rm -rf "$sr_cache/kernel" "$sr_cache/kernel.new"
	mkdir -p "$sr_cache/kernel.new"
	(
		cd "$sr_cache/kernel.new" &&
			{ apt-get download "$package" || { (( EUID == 0 )) && apt-get update && apt-get download "$package"; }; } &&
			dpkg-deb -x "$package"_*.deb . && rm -f ./*.deb &&
			depmod -b . "$(basename lib/modules/*)" && sr_unpack_kernel boot/vmlinuz-* boot/vmlinux
	) >"$log" 2>&1 </dev/null || { tail -n 5 "$log" >&2; sr_die "cannot fetch and unpack $package (whole log: $log)"; }
	mv "$sr_cache/kernel.new" "$sr_cache/kernel"
}

# sr_unpack_kernel FROM TO: the kernel without its own unpacker, which takes 4 s
# under emulation. The header (Documentation/arch/x86/boot.rst) says where the packed
# part is: payload_offset at 0x248, after the real-mode code of setup_sects (0x1f1) + 1 sectors.
sr_unpack_kernel() {
	local sectors offset
	sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$1") && offset=$(od -An -tu4 -j $((0x248)) -N 4 "$1") &&
		tail -c +$(((sectors + 1) * 512 + offset + 1)) "$1" | xz -dc --single-stream 2>/dev/null >"$2"
	# xz stops in the middle of what follows its stream; so look at the result.
	[[ $(head -c 4 "$2") == $'\x7fELF' ]]
}

sr_kernel_package() {
	apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-[0-9.]+-[0-9]+-amd64$/ { print $2; exit }'
}

# sr_build_initramfs: busybox, the modules and init; again whenever one of these changed.
sr_build_initramfs() {
	local version=$1 busybox key root=$sr_cache/initramfs.new name
	busybox=$(command -v busybox)
	key=$({ echo "$version ${sr_wanted_modules[*]}"; cat "$sr_here/init" "$busybox"; } | sha256sum)
	[[ -e $sr_cache/initramfs.cpio && $(cat "$sr_cache/initramfs.key" 2>/dev/null) == "$key" ]] && return 0
	rm -rf "$root" "$sr_cache/initramfs.key"
	mkdir -p "$root/bin" "$root/lib"
	cp "$busybox" "$root/bin/busybox"
	"$root/bin/busybox" --list | grep -qx switch_root || sr_die "$busybox has no switch_root; install busybox-static"
	cp "$sr_here/init" "$root/init"
	chmod 755 "$root/init"
	for name in "${sr_wanted_modules[@]}"; do
		modprobe -d "$sr_cache/kernel" -S "$version" --show-depends "$name" >"$root/depends" ||
			sr_die "the kernel $version has no module $name"
		awk '$1 == "insmod" { print $2 }' "$root/depends"
	done | awk '!seen[$0]++' >"$root/files"
	[[ -s $root/files ]] || sr_die "found no modules for the kernel $version"
	while read -r name; do
		cp "$name" "$root/lib/" && echo "/lib/$(basename "$name")" >>"$root/modules.list"
	done <"$root/files"
	rm -f "$root/depends" "$root/files"
	(cd "$root" && find . | cpio -o -H newc --quiet -R 0:0) >"$sr_cache/initramfs.cpio.new" || sr_die "cannot write the initramfs"
	mv "$sr_cache/initramfs.cpio.new" "$sr_cache/initramfs.cpio"
	rm -rf "$root"
	echo "$key" >"$sr_cache/initramfs.key"
}

# sr_prepare: everything that a VM needs. Sets sr_version and sr_kernel.
sr_prepare() {
	ci/setup.sh softroce >&2 || exit 125
	mkdir -p "$sr_cache/run"
	[[ $sr_repo != *[[:space:]]* ]] || sr_die "$sr_repo: the VM cannot handle white space in this path"
	PATH=$PATH:/usr/sbin:/sbin
	exec {sr_lock}>"$sr_cache/lock"
	flock "$sr_lock"
	sr_fetch_kernel
	sr_version=$(basename "$sr_cache"/kernel/lib/modules/*)
	sr_kernel=$sr_cache/kernel/boot/vmlinux
	[[ -e $sr_kernel ]] || sr_die "no $sr_kernel; remove $sr_cache/kernel, then try again"
	sr_build_initramfs "$sr_version"
	exec {sr_lock}>&-
}

# sr_job DIR DIRECTORY ARGUMENT...: writes the job of a run: the command, with
# the caller's environment as far as it matters, and what sr_export has (NAME=VALUE).
sr_job() {
	local dir=$1 cwd=$2 name
	shift 2
	{
		# shellcheck disable=SC2016
		for name in $(compgen -e); do
			case $name in
			GO[A-Z]* | CGO_* | WEFT_* | HOME | LANG | LC_* | TERM | USER | CC) declare -p "$name" ;;
			esac
		done
		printf 'export PATH=/run/softroce/bin:%q TMPDIR=/run/softroce/tmp SOFTROCE=1 SOFTROCE_DEVICE=rxe0 %s\n' "$PATH" "${sr_export-}"
		printf 'cd %q || exit 125\nexec' "$cwd"
		printf ' %q' "$@"
		echo
	} >"$dir/job"
}

# sr_config DIR HOSTNAME NUMBER LIMIT MTU DEVICES HOSTS
sr_config() {
	cp "$sr_here/guest.sh" "$1/guest.sh"
	printf '%s=%q\n' sr_here "$sr_here" sr_modules "$sr_cache/kernel/lib/modules/$sr_version" sr_hostname "$2" \
		sr_number "$3" sr_limit "$4" sr_mtu "$5" sr_devices "$6" sr_hosts "$7" sr_quiet "${sr_quiet:-0}" \
		sr_together "${sr_together:-0}" sr_meeting "${sr_meeting:-}" >"$1/config"
}

# sr_boot DIR OUT ERR ARGUMENT...: starts the VM of the run in DIR, whose job's
# output goes to the file descriptors OUT and ERR, with further arguments for
# qemu (its network). Sets sr_pid. The VM ends with this shell, however that ends.
sr_boot() {
	local dir=$1 out=$2 err=$3 accel=(-accel tcg,thread=multi -cpu "${SOFTROCE_CPU:-max}")
	shift 3
	if grep -qwE 'vmx|svm' /proc/cpuinfo && [[ -w /dev/kvm ]]; then
		accel=(-accel kvm -accel tcg,thread=multi -cpu max)
	fi
	setpriv --pdeathsig KILL qemu-system-x86_64 \
		-name "softroce,process=softroce-vm" -machine pc -nodefaults -no-user-config -no-reboot -display none \
		"${accel[@]}" -smp "${sr_cpus:-2}" -m "${sr_memory:-4096}" \
		-kernel "$sr_kernel" -initrd "$sr_cache/initramfs.cpio" \
		-append "console=ttyS0 loglevel=5 panic=-1 random.trust_cpu=on mitigations=off softroce.run=$dir softroce.share=$sr_share" \
		-chardev "file,id=boot,path=$dir/boot.log" -serial chardev:boot \
		-device virtio-rng-pci \
		-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=root,mount_tag=root \
		-fsdev "local,id=share,path=$sr_share,security_model=none,multidevs=remap" -device virtio-9p-pci,fsdev=share,mount_tag=share \
		-device virtio-serial-pci \
		-add-fd "fd=$out,set=1" -chardev file,id=out,path=/dev/fdset/1,append=on -device virtserialport,chardev=out,name=out \
		-add-fd "fd=$err,set=2" -chardev file,id=err,path=/dev/fdset/2,append=on -device virtserialport,chardev=err,name=err \
		"$@" </dev/null >"$dir/qemu.log" 2>&1 &
	sr_pid=$!
}

# sr_failed DIR: the VM of DIR ended without a status: shows why.
sr_failed() {
	{
		echo "softroce: the end of the VM's log, $1/boot.log:"
		tail -n 30 "$1/boot.log" 2>/dev/null | tr -d '\r' | sed 's/^/softroce: | /'
		sed 's/^/softroce: qemu: /' "$1/qemu.log" 2>/dev/null
	} >&2
}
