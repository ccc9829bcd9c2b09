//go:build (amd64 || arm64) && !noasm && !race

package cacheline

import "sync/atomic"

// Publish stores v: who loads it sees all that was written before.
//
//go:noescape
func Publish(p *atomic.Uint64, v uint64)

// Fetch begins to fetch the word's cache line for reading, and does not wait for it.
//
//go:noescape
func Fetch(p *atomic.Uint64)

// Own begins to fetch the word's cache line for writing, and does not wait for it.
//
//go:noescape
func Own(p *atomic.Uint64)
