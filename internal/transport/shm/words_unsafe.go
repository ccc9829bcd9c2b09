package shm

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// at32 and at64 are the words of shared memory. Offsets are aligned by layout.

func at32(mem []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(mem[off : off+4])))
}

func at64(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem[off : off+8])))
}

// The operations are without FUTEX_PRIVATE_FLAG: the word is shared by processes.
const (
	futexWait = 0
	futexWake = 1
)

// sleepOn sleeps while *w is v, for d at most. It may return early. The system
// call is announced to the scheduler, which hands the P to somebody else.
func sleepOn(w *atomic.Uint32, v uint32, d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(v), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wakeAll wakes all who sleep on w.
func wakeAll(w *atomic.Uint32) {
	syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, 1<<31-1, 0, 0, 0)
}

// yield lets another thread run on this core, if one wants to.
func yield() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
