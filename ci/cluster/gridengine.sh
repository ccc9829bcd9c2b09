# A real Grid Engine on the hosts of ci/cluster. To be sourced by bash, after lib.sh.
#
#   ge_up DIRECTORY HOST...   the first host has the master; all run jobs
#   ge_down                   ends all of it
#   ge_on HOST COMMAND...     as user ge, who may submit jobs
#
# Debian's packages bring a mail server along, and start what they install. So they are
# downloaded and unpacked into DIRECTORY only, and laid over /usr on the hosts alone.

readonly ge_packages='gridengine-common gridengine-client gridengine-exec gridengine-master libjemalloc2'

ge_on() {
	local host=$1
	shift
	ge_root "$host" setpriv --reuid=1999 --regid=1999 --clear-groups env HOME="$ge_dir/home" USER=ge LOGNAME=ge "$@"
}

# ge_root HOST COMMAND...: as root, with Grid Engine's files in place.
ge_root() {
	local host=$1
	shift
	"$cluster_here/on" "$host" bash -c 'mount -t overlay overlay -o "lowerdir=$1/unpacked/usr:/usr" /usr &&
		mount --bind "$1/passwd" /etc/passwd && mount --bind "$1/group" /etc/group && export SGE_ROOT=$1/root SGE_CELL=default && ulimit -n 4096 && shift && exec "$@"' ge "$ge_dir" "$@"
}

ge_unpack() {
	[[ -e $ge_dir/unpacked/usr/bin/qsub ]] && return
	mkdir -p "$ge_dir/packages" "$ge_dir/unpacked"
	(cd "$ge_dir/packages" && apt-get download $ge_packages) >"$ge_dir/packages/log" 2>&1 ||
		{ (apt-get update && cd "$ge_dir/packages" && apt-get download $ge_packages) >"$ge_dir/packages/log" 2>&1; } ||
		{ cat "$ge_dir/packages/log"; return 1; }
	local deb
	for deb in "$ge_dir"/packages/*.deb; do
		dpkg-deb -x "$deb" "$ge_dir/unpacked" || return
	done
}

ge_up() {
	ge_dir=$1
	shift
	local head=$1 host
	ge_down
	ge_unpack || return
	rm -rf "$ge_dir"/{root,spool,home}
	mkdir -p "$ge_dir"/{root/default/common,spool/qmaster/job_scripts,spool/db,home} || return
	for host; do mkdir -p "$ge_dir/spool/execd/$host"; done
	chown 1999:1999 "$ge_dir/home"
	{ cat /etc/passwd; echo "ge:x:1999:1999::$ge_dir/home:/bin/sh"; } >"$ge_dir/passwd"
	{ cat /etc/group; echo 'ge:x:1999:'; } >"$ge_dir/group"
	cp -a "$ge_dir/unpacked/var/lib/gridengine/." "$ge_dir/root/"
	sed -e 's/sgeadmin/none/' -e "s|/var/spool/gridengine/spooldb|$ge_dir/spool/db|" -e "s|/var/spool/gridengine/qmaster|$ge_dir/spool/qmaster|" \
		"$ge_dir/unpacked/usr/share/gridengine/default-bootstrap" >"$ge_dir/root/default/common/bootstrap"
	echo "$head" >"$ge_dir/root/default/common/act_qmaster"
	echo weft >"$ge_dir/root/default/common/cluster_name"
	# Ports of their own: no service of these names is in /etc/services.
	export SGE_QMASTER_PORT=6444 SGE_EXECD_PORT=6445
	sed -i "s|/var/spool/gridengine/execd|$ge_dir/spool/execd|" "$ge_dir/unpacked/usr/share/gridengine/default-configuration"
	ge_root "$head" sh /usr/share/gridengine/scripts/init_cluster "$ge_dir/root" default "$ge_dir/spool/db" root >"$ge_dir/init.log" 2>&1 ||
		{ cat "$ge_dir/init.log"; return 1; }
	ge_root "$head" sge_qmaster || return
	ge_configure "$@" >"$ge_dir/configure.log" 2>&1 || { cat "$ge_dir/configure.log"; return 1; }
	for host; do ge_root "$host" sge_execd || return; done
	local i
	for i in {1..100}; do
		(( $(ge_root "$head" qstat -f 2>/dev/null | grep -c 'lx-amd64 *$') == $# )) && return 0
		sleep 0.3
	done
	echo 'gridengine: the queues are not up:'
	ge_root "$head" qstat -f
	tail -n 20 "$ge_dir"/spool/qmaster/messages "$ge_dir"/spool/execd/*/messages
	return 1
}

ge_configure() {
	local head=$1 host i
	for i in {1..100}; do ge_root "$head" qconf -sh >/dev/null 2>&1 && break; sleep 0.2; done
	for host; do
		ge_root "$head" qconf -ah "$host" || true
		ge_root "$head" qconf -as "$host" || true
	done
	printf 'pe_name mpi\nslots 999\nuser_lists NONE\nxuser_lists NONE\nstart_proc_args NONE\nstop_proc_args NONE\nallocation_rule $fill_up\ncontrol_slaves TRUE\njob_is_first_task TRUE\nurgency_slots min\naccounting_summary FALSE\nqsort_args NONE\n' >"$ge_dir/pe"
	ge_root "$head" qconf -Ap "$ge_dir/pe" || return
	printf 'group_name @allhosts\nhostlist %s\n' "$*" >"$ge_dir/hostgroup"
	ge_root "$head" qconf -Ahgrp "$ge_dir/hostgroup" || return
	ge_root "$head" qconf -sq | sed -e 's/^qname .*/qname all.q/' -e 's/^hostlist .*/hostlist @allhosts/' -e 's/^slots .*/slots 2/' -e 's/^pe_list .*/pe_list mpi/' \
		-e 's|^shell .*|shell /bin/sh|' -e 's/^load_thresholds .*/load_thresholds NONE/' -e 's/^notify .*/notify 00:00:03/' >"$ge_dir/queue" || return
	ge_root "$head" qconf -Aq "$ge_dir/queue" || return
	ge_root "$head" qconf -ssconf | sed -e 's/^schedule_interval .*/schedule_interval 0:0:1/' -e 's/^flush_submit_sec .*/flush_submit_sec 1/' \
		-e 's/^flush_finish_sec .*/flush_finish_sec 1/' >"$ge_dir/sched" && ge_root "$head" qconf -Msconf "$ge_dir/sched"
}

ge_down() {
	local name pids
	for name in sge_qmaster sge_execd sge_shepherd; do
		pids=$(pgrep -x "$name") && kill -KILL $pids 2>/dev/null
	done
	return 0
}
