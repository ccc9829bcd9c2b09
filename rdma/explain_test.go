package rdma

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Each known error, as a user sees it; those of routes and interfaces came without a word of help
// elsewhere (nccl-tests#185, nccl#925), those of memory without the limit (ucx#8229, cudf-spark#7632). The golden
// file is testdata/errors.txt.
func TestExplain(t *testing.T) {
	nearly := Facts{Bytes: 64 << 20, Memlock: 8 << 20, Pinned: 4 << 10}
	unlimited := Facts{Bytes: 64 << 20, Memlock: -1}
	cases := []struct {
		e    Error
		f    Facts
		kind error
	}{
		{Error{Op: OpListDevices}, Facts{Library: "cannot open shared object file"}, ErrUnsupported},
		{Error{Op: OpRegisterMemory}, Facts{Feature: "relaxed ordering", Wanted: "ibv_reg_mr_iova2"}, ErrUnsupported},
		{Error{Op: OpListDevices, Errno: syscall.ENOSYS}, Facts{}, ErrUnsupported},
		{Error{Op: OpListDevices}, Facts{Sysfs: true, Known: []string{"mlx5_0", "mlx5_1"}}, ErrPermission},
		{Error{Op: OpListDevices}, Facts{}, ErrNoDevice},
		{Error{Op: OpOpenDevice, Kind: ErrNoDevice}, Facts{Wanted: "mlx4_0", Known: []string{"mlx5_0", "rxe0"}}, ErrNoDevice},
		{Error{Op: OpOpenDevice, Kind: ErrNoDevice}, Facts{Wanted: "hfi1_0", Known: []string{"rxe0"}}, ErrNoDevice},
		{Error{Op: OpOpenDevice, Kind: ErrNoDevice}, Facts{Wanted: "mlx4_0"}, ErrNoDevice},
		{Error{Op: OpOpenDevice, Device: "mlx5_0", Errno: syscall.EACCES}, Facts{Wanted: "/dev/infiniband/uverbs0"}, ErrPermission},
		{Error{Op: OpChoosePort, Device: "mlx5_0", Port: 1, Kind: ErrPortDown}, Facts{State: PortInit, Link: LinkInfiniBand}, ErrPortDown},
		{Error{Op: OpChoosePort, Device: "rxe0", Port: 1, Kind: ErrPortDown}, Facts{State: PortDown, Link: LinkEthernet, NetDev: "eth0"}, ErrPortDown},
		{Error{Op: OpChoosePort, Device: "mlx5_0", Port: 1, Kind: ErrPortDown}, Facts{State: PortDown, Link: LinkInfiniBand}, ErrPortDown},
		{Error{Op: OpChooseGID, Device: "rxe0", Port: 1, Kind: ErrNoGID}, Facts{Wanted: "7", Known: []string{"0: fe80::1 RoCE v1"}}, ErrNoGID},
		{Error{Op: OpChooseGID, Device: "rxe0", Port: 1, Kind: ErrNoGID}, Facts{Known: []string{"0: fe80::1 RoCE v1"}, NetDev: "eth0"}, ErrNoGID},
		{Error{Op: OpChooseGID, Device: "rxe0", Port: 1, Kind: ErrNoGID}, Facts{Known: []string{"no entry"}}, ErrNoGID},
		{Error{Op: OpChoosePKey, Device: "mlx5_0", Port: 1, Kind: ErrNoPKey}, Facts{Wanted: "0x8001", Known: []string{"0x7fff"}}, ErrNoPKey},
		{Error{Op: OpRegisterMemory, Device: "mlx5_0", Errno: syscall.EPERM}, nearly, ErrMemlock},
		{Error{Op: OpRegisterMemory, Device: "mlx5_0", Errno: syscall.ENOMEM}, nearly, ErrMemlock},
		{Error{Op: OpCreateCQ, Device: "mlx5_0", Errno: syscall.ENOMEM}, nearly, ErrMemlock},
		{Error{Op: OpRegisterMemory, Device: "mlx5_0", Errno: syscall.ENOMEM}, unlimited, ErrResources},
		{Error{Op: OpRegisterMemory, Device: "mlx5_0", Errno: syscall.EFAULT}, unlimited, ErrInvalid},
		{Error{Op: OpRegisterMemory, Device: "mlx5_0", Errno: syscall.EOPNOTSUPP}, unlimited, ErrUnsupported},
		{Error{Op: OpCreateCQ, Device: "rxe0", Errno: syscall.EINVAL}, Facts{Asked: 65536, Max: 32767}, ErrInvalid},
		{Error{Op: OpCreateQP, Device: "rxe0", Errno: syscall.EINVAL}, Facts{Wanted: "100000 sends"}, ErrInvalid},
		{Error{Op: OpCreateQP, Device: "rxe0", Errno: syscall.ENOMEM}, unlimited, ErrResources},
		{Error{Op: OpModifyInit, Device: "rxe0", QPN: 17, Errno: syscall.EINVAL}, Facts{Wanted: "port 1 with partition key index 3"}, ErrInvalid},
		{Error{Op: OpModifyRTR, Device: "rxe0", Port: 1, QPN: 17, Peer: "::ffff:10.0.0.2", Errno: syscall.ETIMEDOUT}, Facts{NetDev: "eth0"}, ErrUnreachable},
		{Error{Op: OpModifyRTR, Device: "rxe0", QPN: 17, Peer: "::ffff:10.0.0.2", Errno: syscall.ENETUNREACH}, Facts{}, ErrUnreachable},
		{Error{Op: OpModifyRTR, Device: "rxe0", QPN: 17, Errno: syscall.ENODEV}, Facts{}, ErrUnreachable},
		{Error{Op: OpModifyRTR, Device: "rxe0", QPN: 17, Errno: syscall.EINVAL}, Facts{}, ErrInvalid},
		{Error{Op: OpPostSend, Device: "rxe0", QPN: 17, Errno: syscall.ENOMEM}, Facts{Max: 127}, ErrQueueFull},
		{Error{Op: OpPostRecv, Device: "rxe0", QPN: 17, Errno: syscall.ENOMEM}, Facts{Max: 127}, ErrQueueFull},
		{Error{Op: OpCreateChannel, Device: "rxe0", Errno: syscall.EMFILE}, Facts{}, ErrResources},
		{Error{Op: OpCloseCQ, Device: "rxe0", Errno: syscall.EBUSY}, Facts{}, ErrBusy},
		{Error{Op: OpPoll, Device: "rxe0", Errno: syscall.EIO}, Facts{}, ErrDeviceFatal},
		{Error{Op: OpArm, Device: "rxe0", Errno: syscall.EINVAL}, Facts{}, syscall.EINVAL},
	}
	for s := StatusLocalLength; s <= StatusFatal; s++ {
		cases = append(cases, struct {
			e    Error
			f    Facts
			kind error
		}{Error{Op: OpComplete, Device: "rxe0", QPN: 17, Kind: s, Vendor: 0x81}, Facts{}, s})
	}

	used := map[*condition]bool{}
	var got strings.Builder
	for _, tc := range cases {
		for i := range table {
			if table[i].matches(&tc.e, &tc.f) {
				used[&table[i]] = true
				break
			}
		}
		errno := tc.e.Errno
		err := error(Explain(&tc.e, tc.f))
		if !errors.Is(err, tc.kind) {
			t.Errorf("%v: not %v", err, tc.kind)
		}
		if errno != 0 && !errors.Is(err, errno) {
			t.Errorf("%v: not %v", err, errno)
		}
		if strings.ContainsAny(err.Error(), "{}?") && !strings.Contains(err.Error(), "did you mean") && !strings.Contains(err.Error(), "? ") &&
			!strings.HasSuffix(err.Error(), "?") && !strings.Contains(err.Error(), "?;") {
			t.Errorf("a fact is missing: %v", err)
		}
		got.WriteString(err.Error() + "\n")
	}
	for i := range table {
		if !used[&table[i]] {
			t.Errorf("no case for %q", table[i].what)
		}
	}
	const golden = "testdata/errors.txt"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	wantLines, gotLines := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
	for i := range max(len(wantLines), len(gotLines)) {
		var w, g string
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if w != g {
			t.Errorf("line %d of %s (UPDATE_GOLDEN=1 writes it anew):\n got %s\nwant %s", i+1, golden, g, w)
		}
	}
}

func TestExplainKeepsWhatIsKnown(t *testing.T) {
	e := Explain(&Error{Op: OpRegisterMemory, What: "because I say so", Errno: syscall.ENOMEM}, Facts{Memlock: -1})
	if e.What != "because I say so" || e.Kind != ErrResources || e.Hint != "" {
		t.Errorf("%+v", e)
	}
	e = Explain(&Error{Op: OpModifyReset, Errno: syscall.ENXIO}, Facts{})
	if want := "rdma: modify QP to RESET: no such device or address (ENXIO); see dmesg"; e.Error() != want {
		t.Errorf("%v; want %s", e, want)
	}
	e = Explain(&Error{Op: OpPoll, Errno: syscall.EILSEQ}, Facts{})
	if !strings.Contains(e.Error(), "errno 84") {
		t.Errorf("%v", e)
	}
}

func TestCompletionError(t *testing.T) {
	if err := (&WC{}).Err("rxe0"); err != nil {
		t.Errorf("success is an error: %v", err)
	}
	err := (&WC{Status: StatusRetryExceeded, QPN: 0x11, Vendor: 0x81}).Err("rxe0")
	if !errors.Is(err, StatusRetryExceeded) || errors.Is(err, StatusFlushed) {
		t.Errorf("%v", err)
	}
}

func TestLocate(t *testing.T) {
	err := Locate(invalid(OpModifyRTS, "no", ""), "rxe0", 2, 17)
	if want := "rdma: modify QP to RTS on rxe0:2 qp 0x000011: no (EINVAL)"; err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
	if Locate(err, "mlx5_0", 1, 1); !strings.Contains(err.Error(), "rxe0:2") {
		t.Errorf("located twice: %v", err)
	}
	if err := Locate(syscall.EIO, "rxe0", 1, 1); err != syscall.EIO {
		t.Errorf("%v", err)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"mlx5_0", "mlx5_1", "rxe0"}
	for wanted, want := range map[string]string{"mlx5_2": "mlx5_0", "mlx51": "mlx5_1", "rxe": "rxe0", "RXE0": "rxe0", "": "", "infiniband": ""} {
		if got := Nearest(wanted, known); got != want {
			t.Errorf("%q: %q; want %q", wanted, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 64 << 20: "64 MiB", 3 << 29: "1.5 GiB"} {
		if got := sizeOf(n); got != want {
			t.Errorf("%d: %s; want %s", n, got, want)
		}
	}
}
