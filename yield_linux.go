package weft

import "syscall"

// yieldCore lets another thread of this core run. runtime.Gosched would be
// slow for a goroutine that is locked to its thread, and does not help other
// processes.
func yieldCore() { _, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
