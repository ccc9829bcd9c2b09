package verbs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapMemory returns n bytes of zeros outside of the Go heap, on page boundaries.
func mapMemory(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("verbs: map %d bytes: %w", n, err)
	}
	return b, nil
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }

// noIPv6 says that IPv6 is off on this host.
func noIPv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return os.IsNotExist(err)
}
