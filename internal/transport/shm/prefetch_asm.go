//go:build amd64 && !noasm

package shm

// prefetchWrite has the cache line of p brought here for writing.
//
//go:noescape
func prefetchWrite(p *byte)
