//go:build !amd64 || noasm || race

package cacheline

// Stream copies src to dst, which has its length and is not the same memory.
func Stream(dst, src []byte) { copy(dst[:len(src)], src) }
