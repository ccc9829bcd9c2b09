package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
)

// A network is two hosts: network namespaces with a cable (veth) between them. Each
// has a name and an address of its own, and one processor for its rank.
type network struct {
	dir   string // has the program that plays ssh
	names []string
	err   error
	tried bool
}

// withoutNetns is what there is to do about it.
const withoutNetns = "run it as root, or leave these rows out with --without netns"

const netPrefix = "10.78.0" // of the addresses .1 and .2

func address(host int) string { return fmt.Sprintf("%s.%d", netPrefix, host+1) }

// up makes the hosts, once.
func (n *network) up() error {
	if n.tried {
		return n.err
	}
	n.tried = true
	if n.err = n.make(); n.err != nil {
		n.err = fmt.Errorf("cannot make two network namespaces (this needs root and iproute2; %s): %w", withoutNetns, n.err)
	}
	return n.err
}

func (n *network) make() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	if n.dir, err = os.MkdirTemp("", "compare-net-"); err != nil {
		return err
	}
	// Not weft-*: these are ci/cluster's.
	a, b := fmt.Sprintf("weftbench-%d-a", os.Getpid()), fmt.Sprintf("weftbench-%d-b", os.Getpid())
	for _, ns := range []string{a, b} {
		if err := ip("netns add " + ns); err != nil {
			return err
		}
		n.names = append(n.names, ns)
	}
	if err := ip("-n " + a + " link add eth0 type veth peer name eth0 netns " + b); err != nil {
		return err
	}
	for host, ns := range n.names {
		for _, args := range []string{"addr add " + address(host) + "/24 dev eth0", "link set lo up", "link set eth0 up"} {
			if err := ip("-n " + ns + " " + args); err != nil {
				return err
			}
		}
	}
	if err := os.WriteFile(filepath.Join(n.dir, "ssh"), []byte(n.ssh()), 0o755); err != nil {
		return err
	}
	return n.carrier()
}

// carrier waits until both ends of the cable have seen that the other is there. UCX
// takes no interface that has not, and the kernel may need a second.
func (n *network) carrier() error {
	for _, ns := range n.names {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			out, err := exec.Command("ip", "-n", ns, "-o", "link", "show", "dev", "eth0").CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip -n %s link show: %w: %s", ns, err, strings.TrimSpace(string(out)))
			}
			if strings.Contains(string(out), "state UP") {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("eth0 of %s is not up after 10 s: %s", ns, strings.TrimSpace(string(out)))
			}
		}
	}
	return nil
}

// ssh is the program that runs a command on one of the hosts.
func (n *network) ssh() string {
	var cases strings.Builder
	for host, ns := range n.names {
		fmt.Fprintf(&cases, "%s) ns=%s cpu=%d ;;\n", address(host), ns, host)
	}
	return `#!/bin/sh
while :; do
	case $1 in
	-o) shift 2 ;;
	-*) shift ;;
	*) break ;;
	esac
done
case $1 in
` + cases.String() + `*) echo "ssh: no host $1" >&2; exit 255 ;;
esac
shift
exec ip netns exec "$ns" taskset -c "$cpu" unshare --uts sh -c 'hostname "$1"; shift; exec sh -c "$*"' sh "$ns" "$@"
`
}

func ip(args string) error {
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// down removes what up has made. The contestants have ended.
func (n *network) down() error {
	var errs []error
	for _, ns := range n.names {
		errs = append(errs, ip("netns del "+ns))
	}
	if n.dir != "" {
		errs = append(errs, os.RemoveAll(n.dir))
	}
	return errors.Join(errs...)
}

// spec makes s start two ranks of role, one on each host, from the first one. The
// processors are given out by ssh.
func (n *network) spec(s *contest.Spec, role, weftrun string, program []string) {
	ssh := filepath.Join(n.dir, "ssh")
	hosts := address(0) + "," + address(1)
	// weftrun finds ssh on its PATH; the others are told.
	s.Argv = []string{ssh, address(0), "PATH=" + n.dir + ":$PATH", "exec"}
	switch role {
	case ours:
		s.Argv = append(s.Argv, weftrun, "-n", "2", "--launcher", "ssh", "--host", address(0)+":1,"+address(1)+":1",
			"--interface", netPrefix+".0/24", "--bind-to", "none")
	case openMPI:
		s.Argv = append(s.Argv, "mpirun.openmpi", "--allow-run-as-root", "-np", "2", "--host", hosts, "--bind-to", "none",
			"--mca", "plm_rsh_agent", ssh, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0",
			"--mca", "oob_tcp_if_include", "eth0")
	case mpich:
		s.Argv = append(s.Argv, "mpiexec.hydra", "-n", "2", "-hosts", hosts, "-launcher", "ssh", "-launcher-exec", ssh,
			"-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", "eth0")
	}
	s.Argv = append(s.Argv, program...)
}
