//go:build !amd64 || noasm

package shm

// prefetchWrite is a hint, which is not given here.
func prefetchWrite(*byte) {}
