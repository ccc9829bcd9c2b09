//go:build (amd64 || arm64) && !noasm

package pause

// Spin executes n spin-wait hints; none when n is not positive.
//
//go:noescape
func Spin(n int)
