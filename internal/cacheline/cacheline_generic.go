//go:build !(amd64 || arm64) || noasm || race

package cacheline

import "sync/atomic"

// Publish stores v: who loads it sees all that was written before.
func Publish(p *atomic.Uint64, v uint64) { p.Store(v) }
