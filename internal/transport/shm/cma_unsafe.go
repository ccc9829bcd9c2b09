package shm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
)

// Memory outside an arena is read with process_vm_readv where the system lets
// ranks read each other: same user, no ptrace_scope, one pid namespace. Whether it does
// is found out once for the host, by reading a token; the answer is in the
// segment's header. The first rank to attach has nobody to ask, so the answer
// comes with the second.
const (
	directUnknown = 0
	directWorks   = 1
	directRefused = 2
)

// regionProcess is the kind of a region in the memory of a process: Key is the
// index of its owner on the host, Addr the address.
const regionProcess = 2

// publishToken lets others try to read this process, and tries to read those
// who published before. Of two that attach at once, one sees the other.
func (t *Transport) publishToken() {
	t.token = new(uint64)
	*t.token = rand.Uint64() | 1
	mem, block, pid := t.seg.mem, t.seg.block(t.self), os.Getpid()
	at64(mem, block+offToken).Store(*t.token)
	at64(mem, block+offTokenAt).Store(uint64(uintptr(unsafe.Pointer(t.token))))
	for i := range t.seg.ranks {
		block := t.seg.block(i)
		other, addr := int(at32(mem, block+offAttached).Load()), at64(mem, block+offTokenAt).Load()
		if addr == 0 || other == pid {
			continue // not there yet, or a rank of this process, which proves nothing
		}
		var got [8]byte
		answer := uint32(directRefused)
		if readProcess(other, addr, got[:]) == nil && *(*uint64)(unsafe.Pointer(&got)) == at64(mem, block+offToken).Load() {
			answer = directWorks
		}
		t.direct.CompareAndSwap(directUnknown, answer)
		return
	}
}

// describeProcess describes memory that is in no arena. It is on the heap: what
// is passed through an interface never lives on a stack, which could move.
func (t *Transport) describeProcess(buf []byte) (wire.Region, bool) {
	if t.direct.Load() != directWorks || len(buf) == 0 {
		return wire.Region{}, false
	}
	return wire.Region{Kind: regionProcess, Key: uint32(t.self), Addr: address(buf)}, true
}

// address returns where b lies in this process.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// writeProcess copies n bytes at an address of this process to another one. The
// kernel checks the bounds on both sides.
func writeProcess(pid int, to, from uint64, n int) error {
	// As numbers: the puller may have got the address wrong, which must not
	// look like a pointer to the garbage collector.
	local := [2]uintptr{uintptr(from), uintptr(n)}
	remote := [2]uintptr{uintptr(to), uintptr(n)}
	wrote, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_WRITEV, uintptr(pid),
		uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	switch {
	case errno != 0:
		return errno
	case int(wrote) != n:
		return unix.EFAULT
	}
	return nil
}

// readProcess copies from the memory of another process, in pieces that do not
// keep a thread in the kernel for long. The kernel checks the bounds.
func readProcess(pid int, addr uint64, dst []byte) error {
	for off := 0; off < len(dst); {
		piece := dst[off:min(len(dst), off+pieceLarge)]
		local := [1]unix.Iovec{{Base: unsafe.SliceData(piece), Len: uint64(len(piece))}}
		remote := [1]unix.RemoteIovec{{Base: uintptr(addr) + uintptr(off), Len: len(piece)}}
		n, err := unix.ProcessVMReadv(pid, local[:], remote[:], 0)
		if err != nil {
			return fmt.Errorf("read %d bytes at %#x of process %d: %w", len(dst), addr, pid, err)
		}
		if n <= 0 {
			return fmt.Errorf("read %d bytes at %#x of process %d: only %d came", len(dst), addr, pid, off)
		}
		off += n
	}
	return nil
}
