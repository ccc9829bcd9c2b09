//go:build !(amd64 || arm64) || noasm

package pause

import "sync/atomic"

// Spin executes n spin-wait hints; none when n is not positive. Go has no
// portable hint: an atomic load of a private word keeps the loop from being
// removed and takes a similar order of time.
func Spin(n int) {
	var word atomic.Uint32
	for range n {
		for range 16 {
			word.Load()
		}
	}
}
