//go:build amd64 && !noasm && !race

package cacheline

// leastStream is from where on there are whole lines.
const leastStream = 128

// Stream copies src to dst, which has its length and is not the same memory, past the caches: what does not
// stay there anyway need not be fetched before it is written. It is slower than copy for what does.
func Stream(dst, src []byte) {
	if len(src) < leastStream {
		copy(dst, src)
		return
	}
	stream(&dst[:len(src)][0], &src[0], len(src))
}

//go:noescape
func stream(dst, src *byte, n int)
