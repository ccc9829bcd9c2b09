//go:build cgo

package ibverbs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/rdma"
)

func TestWrongName(t *testing.T) {
	name, _ := realSpec(t)
	_, err := New(Options{}).Open(name + "x")
	wantError(t, err, rdma.ErrNoDevice, "there is no device "+name+"x", "did you mean "+name+"?", "weft info")
}

// What is known before the device is open stays true when it is.
func TestInfo(t *testing.T) {
	d, port := realDevice(t, Direct)
	all, err := New(Options{}).Devices()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(i rdma.DeviceInfo) bool { return i.Name == d.info.Name })
	if i >= 0 && all[i].Firmware == "" {
		all[i].Firmware = d.info.Firmware // devices in software tell only who opens them
	}
	if i < 0 || all[i] != d.info {
		t.Errorf("listed %+v, opened %+v", all, d.info)
	}
	if d.info.NodeGUID == 0 || d.info.Driver == "" || d.info.Ports < 1 {
		t.Errorf("%+v", d.info)
	}
	if _, err := os.Stat(d.info.Path); err != nil {
		t.Error(err)
	}
	p, err := d.QueryPort(port)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %+v %+v", d.info, d.limits, p)
}

// The one call and the files of sysfs give the same table.
func TestGIDTableBothWays(t *testing.T) {
	d, port := realDevice(t, Direct)
	p, err := d.QueryPort(port)
	if err != nil {
		t.Fatal(err)
	}
	byCall, err := d.gids(port, p)
	if err != nil {
		t.Fatal(err)
	}
	byFile, err := d.p.sysfs.gids(d.info.Name, port, p.GIDs, p.LinkLayer)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(byCall, byFile) || len(byFile) == 0 {
		t.Errorf("by call %v, by file %v", byCall, byFile)
	}
	t.Log(byCall)
}

// A GID that is not the port's is found out by the address that cannot be made of it.
func TestGIDsAreTried(t *testing.T) {
	d, port := realDevice(t, Direct)
	table := []rdma.GIDEntry{{Index: 1000, GID: rdma.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}, Type: rdma.GIDRoCEv2}}
	p, err := d.QueryPort(port)
	if err != nil {
		t.Fatal(err)
	}
	if p.LinkLayer != rdma.LinkEthernet {
		t.Skip("the addresses of InfiniBand ports are not tried: this wants RoCE, as make test-rdma has in a VM")
	}
	if err := d.tryGIDs(port, table); err != nil {
		t.Fatal(err)
	}
	if table[0].Err == nil {
		t.Error("an address was made of a GID that is not in the table")
	}
}

// Receives of a QP that failed by itself are flushed as well.
func TestPostRecvAfterFailure(t *testing.T) {
	for _, io := range modes {
		t.Run(io.String(), func(t *testing.T) {
			a, b := connected(t, io, 0)
			a.post(rdma.SendWR{ID: 1, Op: rdma.Write, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Segment(a.mr, 0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() ^ 0xff00})
			if wc := a.next(); wc.Status != rdma.StatusRemoteAccess {
				t.Fatalf("%+v", wc)
			}
			if _, err := a.qp.PostRecv([]rdma.RecvWR{{ID: 2}}); err != nil {
				t.Fatal(err)
			}
			if wc := a.next(); wc.ID != 2 || wc.Status != rdma.StatusFlushed {
				t.Fatalf("%+v", wc)
			}
		})
	}
}

// More than one batch goes with one Post, and with one Poll.
func TestLargeBatches(t *testing.T) {
	for _, io := range modes {
		t.Run(io.String(), func(t *testing.T) {
			const n = 100
			a, b := connected(t, io, 0)
			var sends []rdma.SendWR
			var recvs []rdma.RecvWR
			for i := range uint64(n) {
				recvs = append(recvs, rdma.RecvWR{ID: i})
				sends = append(sends, rdma.SendWR{ID: i, Op: rdma.SendImm, Imm: uint32(i), Flags: rdma.Signaled})
			}
			if k, err := b.qp.PostRecv(recvs); k != n || err != nil {
				t.Fatal(k, err)
			}
			sends[70].Op = 99
			if k, err := a.qp.PostSend(sends); k != 70 || !errors.Is(err, rdma.ErrInvalid) {
				t.Fatal(k, err)
			}
			sends[70].Op = rdma.SendImm
			if k, err := a.qp.PostSend(sends[70:]); k != n-70 || err != nil {
				t.Fatal(k, err)
			}
			for i := range uint64(n) {
				if wc := a.next(); wc.ID != i {
					t.Fatalf("send %d: %+v", i, wc)
				}
				if wc := b.next(); wc.ID != i || wc.Imm != uint32(i) {
					t.Fatalf("receive %d: %+v", i, wc)
				}
			}
		})
	}
}

// A child process changes nothing for the transfers that run meanwhile. Here nothing prepares for it, as
// ibv_fork_init does, which broke huge pages and children (Mooncake#3845, rdma-core#1222).
func TestExecDuringTransfers(t *testing.T) {
	for _, io := range modes {
		t.Run(io.String(), func(t *testing.T) {
			a, b := connected(t, io, 0)
			var stop atomic.Bool
			var children atomic.Int32
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ; !stop.Load(); children.Add(1) {
					if out, err := exec.Command("/bin/sh", "-c", "echo $((6*7))").Output(); err != nil || strings.TrimSpace(string(out)) != "42" {
						t.Errorf("%s: %v", out, err)
						break
					}
				}
			}()
			const size = 4096
			i := 0
			for ; !t.Failed() && (i < 300 || children.Load() < 10); i++ {
				for j := range a.mem[:size] {
					a.mem[j] = byte(i + j)
				}
				a.write(b, size)
				if !bytes.Equal(a.mem[:size], b.mem[:size]) {
					t.Fatalf("transfer %d arrived wrong", i)
				}
			}
			stop.Store(true)
			<-done
			t.Logf("%d transfers beside %d children", i, children.Load())
		})
	}
}

// The device does not keep its descriptors open in children.
func TestDescriptorsAreNotInherited(t *testing.T) {
	for _, io := range modes {
		a, _ := connected(t, io, 0)
		out, err := exec.Command("/bin/ls", "-l", "/proc/self/fd").CombinedOutput()
		if err != nil || strings.Contains(string(out), "infiniband") || strings.Contains(string(out), "eventfd") {
			t.Errorf("%v: %v\n%s", io, err, out)
		}
		_ = a
	}
}

// One port goes down under an open device: an event, a state, and words.
func TestPortDown(t *testing.T) {
	d, port := realDevice(t, Direct)
	if d.info.Driver != driverRXE || os.Getuid() != 0 {
		t.Skip("only the network interface of soft-RoCE is taken down, by root: run it as root on such a device, as make test-rdma does")
	}
	netdev := d.p.sysfs.parent(d.info.Name)
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	iface, err := net.InterfaceByName(netdev)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := iface.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	ip("link", "set", netdev, "down")
	waitEvent(t, d, rdma.PortError, port)
	p, err := d.QueryPort(port)
	if err != nil {
		t.Fatal(err)
	}
	err = p.CheckActive(d.info.Name, netdev)
	wantError(t, err, rdma.ErrPortDown, "port state is down", "ip link set "+netdev+" up")
	if _, err := d.GIDTable(port); err != nil {
		t.Errorf("the table of a port that is down: %v", err)
	}
	ip("link", "set", netdev, "up")
	for _, a := range addrs { // IPv6 addresses go with the link
		if a.(*net.IPNet).IP.To4() == nil {
			_ = exec.Command("ip", "addr", "add", a.String(), "dev", netdev).Run()
		}
	}
	waitEvent(t, d, rdma.PortActivated, port)
	a, b := connected(t, Direct, 0) // all is well again
	a.write(b, 4096)
}

func waitEvent(t *testing.T, d *device, want rdma.EventType, port int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		e, ok, err := d.NextEvent()
		if err != nil {
			t.Fatal(err)
		}
		if ok && e.Type == want {
			if e.Port != port {
				t.Errorf("%v", e)
			}
			return
		}
		if !ok {
			fds := []unix.PollFd{{Fd: int32(d.EventFD()), Events: unix.POLLIN}}
			_, _ = unix.Poll(fds, 100)
		}
	}
	t.Fatalf("no %v came", want)
}

// Memory that must not be locked: the error has the limit, what is in use, and
// the command that raises it (ucx#8229). The child process has no right to lock more.
func TestMemlock(t *testing.T) {
	name, _ := realSpec(t)
	if os.Getuid() != 0 {
		t.Skip("only root can drop the right to lock memory: run it as root, as make test-rdma does")
	}
	for limit, want := range map[int][]string{
		1 << 20: {"cannot lock 4 MiB", "the limit of locked memory is 1 MiB", "ulimit -l unlimited", "ENOMEM"},
		0:       {"cannot lock 4 MiB", "the limit of locked memory is 0", "ulimit -l unlimited", "EPERM"},
	} {
		cmd := exec.Command("setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock",
			"prlimit", "--memlock="+strconv.Itoa(limit), os.Args[0], "-test.run", "^TestMemlockChild$", "-test.v")
		cmd.Env = append(os.Environ(), "WEFT_TEST_MEMLOCK="+name)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		var text string
		lines := bufio.NewScanner(bytes.NewReader(out))
		for lines.Scan() {
			if j, ok := strings.CutPrefix(lines.Text(), "ERROR "); ok {
				if err := json.Unmarshal([]byte(j), &text); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("with a limit of %d: %q does not say %q\n%s", limit, text, w, out)
			}
		}
		t.Log(text)
	}
}

// TestMemlockChild is the child of TestMemlock. By itself it is no test.
func TestMemlockChild(t *testing.T) {
	name := os.Getenv("WEFT_TEST_MEMLOCK")
	if name == "" {
		return
	}
	d, err := New(Options{}).Open(name)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	_, err = pd.RegisterMemory(mapped(t, 4<<20), rdma.LocalWrite)
	if !errors.Is(err, rdma.ErrMemlock) {
		t.Fatalf("%v", err)
	}
	text, err := json.Marshal(err.Error())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("ERROR %s\n", text)
	if err := pd.Close(); err != nil { // nothing is left of it
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Memory that is not mapped, and memory for reading that must be written.
func TestBadMemory(t *testing.T) {
	d, _ := realDevice(t, Direct)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pd.Close(); err != nil {
			t.Error(err)
		}
	}()
	mem, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pd.RegisterMemory(mem, rdma.LocalWrite)
	wantError(t, err, rdma.ErrInvalid, "64 KiB are not mapped, or mapped read-only", "EFAULT")
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
	_, err = pd.RegisterMemory(mem, rdma.LocalWrite)
	if !errors.Is(err, syscall.EFAULT) {
		t.Errorf("memory that is gone: %v", err)
	}
}

// No route and no neighbour end in words, not in a hang (nccl-tests#185, nccl#925).
func TestUnreachable(t *testing.T) {
	d, port := realDevice(t, Direct)
	for addr, errno := range map[string][]syscall.Errno{
		"10.77.0.250": {syscall.ETIMEDOUT, syscall.EHOSTUNREACH}, // in the network, and nobody there
		"192.0.2.1":   {syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ETIMEDOUT},
	} {
		e := newEnd(t, d, port, 0)
		gid, err := rdma.ParseGID(addr)
		if err != nil {
			t.Fatal(err)
		}
		attr := e.rtr(e)
		attr.Path.DGID = gid
		if err := e.qp.Init(rdma.InitAttr{Port: port}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err = e.qp.ReadyToReceive(attr)
		found := slices.ContainsFunc(errno, func(n syscall.Errno) bool { return errors.Is(err, n) })
		if !errors.Is(err, rdma.ErrUnreachable) || !found || !strings.Contains(err.Error(), "::ffff:"+addr) {
			t.Errorf("%s: %v", addr, err)
		}
		t.Log(time.Since(start), err)
		e.close()
	}
}

// Close while another goroutine polls, arms and posts: that one gets ErrClosed.
func TestCloseWhileInUse(t *testing.T) {
	for _, io := range modes {
		t.Run(io.String(), func(t *testing.T) {
			d, port := realDevice(t, io)
			for range 10 {
				e := newEnd(t, d, port, 0)
				if err := e.qp.Init(rdma.InitAttr{Port: port}); err != nil {
					t.Fatal(err)
				}
				started, done := make(chan struct{}), make(chan [2]error)
				go func() {
					close(started)
					var errs [2]error
					for errs[0] == nil || errs[1] == nil {
						if errs[0] == nil {
							_, errs[0] = e.qp.PostRecv([]rdma.RecvWR{{}})
							if errors.Is(errs[0], rdma.ErrQueueFull) {
								errs[0] = nil
							}
						}
						_, err := e.cq.Poll(e.wcs[:])
						errs[1] = errors.Join(err, e.cq.Arm(false))
					}
					done <- errs
				}()
				<-started
				e.close()
				for _, err := range <-done {
					if !errors.Is(err, rdma.ErrClosed) {
						t.Errorf("%v", err)
					}
				}
			}
		})
	}
}
