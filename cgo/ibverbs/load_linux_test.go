//go:build cgo

package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

// libraryWith makes a library of testdata/library.c that behaves as the definitions say, and
// returns its file.
func libraryWith(t testing.TB, defines ...string) string {
	t.Helper()
	return buildLibrary(t, "testdata/library.c", defines...)
}

// buildLibrary makes a library in the place of libibverbs.
func buildLibrary(t testing.TB, source string, defines ...string) string {
	t.Helper()
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("infiniband/verbs.h is not here, so no library can be made: apt-get install libibverbs-dev")
	}
	cc := cmp.Or(os.Getenv("CC"), "gcc")
	if _, err := exec.LookPath(cc); err != nil {
		t.Skipf("no library can be made without a C compiler (%v): apt-get install gcc, or set CC", err)
	}
	so := filepath.Join(t.TempDir(), "libibverbs.so.1")
	args := append(defines, "-shared", "-fPIC", "-o", so, source)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", cc, args, err, out)
	}
	return so
}

// list and opens are definitions: what these calls of the library fail with, 0 for success.
func list(errno int) string { return fmt.Sprintf("-DLIST=%d", errno) }
func opens(errno syscall.Errno) string {
	return fmt.Sprintf("-DOPEN=%d", int(errno))
}

// sysfsWith is a tree in the place of /sys, with some devices.
func sysfsWith(t testing.TB, files map[string]string) sysfs {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return sysfs(root)
}

// notBuiltIn skips tests that need the shim.
func notBuiltIn(t testing.TB) {
	t.Helper()
	if _, err := New(Options{Library: "/nowhere"}).Devices(); strings.Contains(err.Error(), "not built in") {
		t.Skip(err)
	}
}

// Each way of having no device has its own words, and says what to do: programs that only became slow kept
// their users guessing (nccl#444, nccl#1410).
func TestNoDevice(t *testing.T) {
	notBuiltIn(t)
	cards := map[string]string{"class/infiniband/mlx5_0/fw_ver": "1.2.3\n", "class/infiniband/mlx5_1/fw_ver": "1.2.3\n"}
	empty := filepath.Join(t.TempDir(), "libempty.so")
	if err := os.WriteFile(empty, []byte("this is no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		file  string
		sysfs map[string]string
		kind  error
		errno syscall.Errno
		want  []string
	}{
		{"no library", "/nowhere/libibverbs.so.1", nil, rdma.ErrUnsupported, 0,
			[]string{"cannot be loaded", "/nowhere/libibverbs.so.1", "No such file", "apt-get install libibverbs1 ibverbs-providers"}},
		{"not a library", empty, nil, rdma.ErrUnsupported, 0, []string{"cannot be loaded", "libempty.so"}},
		{"a library without a function", libraryWith(t, list(0), opens(0), "-DWITHOUT_CREATE_QP"), nil, rdma.ErrUnsupported, 0,
			[]string{"too old", "ibv_create_qp", "upgrade rdma-core"}},
		{"no kernel support", libraryWith(t, list(int(syscall.ENOSYS)), opens(0)), nil, rdma.ErrUnsupported, syscall.ENOSYS,
			[]string{"kernel has no RDMA support", "modprobe ib_uverbs"}},
		{"no device", libraryWith(t, list(0), opens(0)), nil, rdma.ErrNoDevice, 0, []string{"there is no RDMA device", "rdma link add rxe0"}},
		{"devices without a driver", libraryWith(t, list(0), opens(0)), cards, rdma.ErrPermission, 0,
			[]string{"mlx5_0, mlx5_1", "libibverbs shows none", "ibverbs-providers", "docker run --device=/dev/infiniband"}},
		{"no permission for the list", libraryWith(t, list(int(syscall.EACCES)), opens(0)), cards, rdma.ErrPermission, syscall.EACCES,
			[]string{"libibverbs shows none"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := New(Options{Library: tc.file})
			p.sysfs = sysfsWith(t, tc.sysfs)
			_, err := p.Devices()
			wantError(t, err, tc.kind, tc.want...)
			if tc.errno != 0 && !errors.Is(err, tc.errno) {
				t.Errorf("%v is not %v", err, tc.errno)
			}
			_, err = p.Open("mlx5_0")
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), "mlx5_0") {
				t.Errorf("opening: %v", err)
			}
		})
	}
}

func TestCannotOpen(t *testing.T) {
	notBuiltIn(t)
	for errno, tc := range map[syscall.Errno]struct {
		kind error
		want []string
	}{
		syscall.EACCES: {rdma.ErrPermission, []string{"/dev/infiniband/uverbs9"}},
		syscall.EIO:    {rdma.ErrPermission, []string{"/dev/infiniband/uverbs9 is not here", "--device=/dev/infiniband"}},
	} {
		p := New(Options{Library: libraryWith(t, list(-1), opens(errno))})
		_, err := p.Open("card0")
		wantError(t, err, tc.kind, tc.want...)
		if !errors.Is(err, errno) {
			t.Errorf("%v is not %v", err, errno)
		}
		_, err = p.Open("cart0")
		wantError(t, err, rdma.ErrNoDevice, "there is no device cart0", "did you mean card0?")
	}
}

// Cards with virtual functions make many devices.
func TestManyDevices(t *testing.T) {
	notBuiltIn(t)
	for _, n := range []int{1, 16, 17, 100} {
		p := New(Options{Library: libraryWith(t, list(-n), opens(0))})
		all, err := p.Devices()
		if err != nil {
			t.Fatal(err)
		}
		if last := fmt.Sprintf("card%d", n-1); len(all) != n || all[n-1].Name != last {
			t.Errorf("%d devices, want %d, the last one %s", len(all), n, last)
		}
	}
}

// The environment names the library and the way to drive queues.
func TestEnvironment(t *testing.T) {
	notBuiltIn(t)
	t.Setenv("WEFT_IBVERBS_LIB", "/nowhere/else.so")
	p := New(Options{}) // as the registered one, which may have loaded its library
	_, err := p.Devices()
	wantError(t, err, rdma.ErrUnsupported, "/nowhere/else.so")
	for value, want := range map[string]IO{"": DefaultIO, "direct": Direct, "thread": Thread, "threads": 0} {
		t.Setenv("WEFT_RDMA_IO", value)
		got, err := New(Options{}).io()
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("WEFT_RDMA_IO=%s: %v, %v", value, got, err)
		}
	}
	t.Setenv("WEFT_RDMA_IO", "threads")
	_, err = p.Open("rxe0")
	wantError(t, err, rdma.ErrInvalid, `WEFT_RDMA_IO is "threads"`, "direct or thread")
}

// Without the header, and without cgo, the package builds, and says that it cannot work and why.
func TestNotBuiltIn(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("it builds programs, and there is no go command: run it where there is one, as make test does")
	}
	for name, tc := range map[string]struct{ env, want string }{
		"no header": {"CGO_CFLAGS=-O2 -DWEFT_NO_VERBS", "apt-get install libibverbs-dev"},
		"no cgo":    {"CGO_ENABLED=0", "CGO_ENABLED=1 go build -a"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("go", "run", "./testdata/devices")
			cmd.Env = append(os.Environ(), tc.env)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v\n%s", cmd, err, out)
			}
			for _, want := range []string{"rdma: list devices: verbs is not built in", "rdma: list devices on mlx5_0: verbs is not built in", tc.want} {
				if !strings.Contains(string(out), want) {
					t.Errorf("%s\ndoes not say %q", out, want)
				}
			}
		})
	}
}

// The registered provider answers on any host, whatever it has.
func TestRegistered(t *testing.T) {
	p, err := rdma.Lookup(Name)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := p.Devices()
	if err == nil {
		t.Log(devices)
		return
	}
	if !errors.Is(err, rdma.ErrNoDevice) && !errors.Is(err, rdma.ErrUnsupported) && !errors.Is(err, rdma.ErrPermission) {
		t.Errorf("%v", err)
	}
	if e, ok := errors.AsType[*rdma.Error](err); !ok || e.Hint == "" {
		t.Errorf("%v does not say what to do", err)
	}
}

// Entries that cannot be read end nothing, as in containers (uccl#301).
func TestSysfs(t *testing.T) {
	dir := "class/infiniband/mlx5_0/ports/1/"
	files := map[string]string{"class/infiniband/rxe0/parent": "eth7\n", "class/net/eth7/device/numa_node": "1\n"}
	for i, g := range []struct{ gid, kind, dev string }{
		{"fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", "eth0"},
		{"0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth0"},
		{"0000:0000:0000:0000:0000:0000:0000:0000", "", ""},
		{"not a gid", "", ""},
		{"fe80:0000:0000:0000:0000:0000:0000:0002", "RoCE v3", "eth0"},
	} {
		n := fmt.Sprint(i)
		files[dir+"gids/"+n], files[dir+"gid_attrs/types/"+n], files[dir+"gid_attrs/ndevs/"+n] = g.gid+"\n", g.kind+"\n", g.dev+"\n"
	}
	files[dir+"gids/5"] = "fe80:0000:0000:0000:0000:0000:0000:0003\n" // its type cannot be read
	s := sysfsWith(t, files)
	table, err := s.gids("mlx5_0", 1, 8, rdma.LinkEthernet)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range table {
		text := e.String()
		if e.Err != nil {
			text = fmt.Sprintf("%d: error", e.Index)
		}
		got = append(got, text)
	}
	want := "0: fe80::1 RoCE v1 on eth0|1: ::ffff:10.0.0.1 RoCE v2 on eth0|3: error|4: error|5: error"
	if strings.Join(got, "|") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), want)
	}
	if _, err := s.gids("mlx5_9", 1, 8, rdma.LinkEthernet); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a device without a table: %v", err)
	}
	if s.driver("rxe0") != driverRXE || s.numaNode("rxe0") != 1 || s.numaNode("mlx5_0") != -1 || s.ports("mlx5_0") != 1 {
		t.Errorf("%s %d %d %d", s.driver("rxe0"), s.numaNode("rxe0"), s.numaNode("mlx5_0"), s.ports("mlx5_0"))
	}
	if s.netdev("mlx5_0", 1, 4) != "eth0" || s.netdev("rxe0", 1, 0) != "eth7" {
		t.Errorf("%s %s", s.netdev("mlx5_0", 1, 4), s.netdev("rxe0", 1, 0))
	}
}

func TestRate(t *testing.T) {
	for _, tc := range []struct {
		width, speed int
		want         float64
	}{{1, 1, 2}, {2, 4, 32}, {2, 32, 100}, {2, 64, 200}, {2, 128, 400}, {1, 32, 25}, {0, 0, 0}, {99, 99, 0}} {
		if got := rate(tc.width, tc.speed); got != tc.want {
			t.Errorf("width %d, speed %d: %g Gbit/s, want %g", tc.width, tc.speed, got, tc.want)
		}
	}
}

// wantError wants an *rdma.Error of a kind, whose text has all parts.
func wantError(t testing.TB, err, kind error, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v; want %v", err, kind)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%v\ndoes not say %q", err, p)
		}
	}
}
