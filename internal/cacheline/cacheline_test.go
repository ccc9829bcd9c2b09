package cacheline_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/weft-hpc/weft/internal/cacheline"
)

// Who sees a word sees what was written before it.
func TestPublish(t *testing.T) {
	const n = 200_000
	var data [4]uint64
	var full, free atomic.Uint64
	go func() {
		for i := uint64(1); i <= n; i++ {
			for free.Load() != i-1 {
				runtime.Gosched()
			}
			for j := range data {
				data[j] = i
			}
			cacheline.Publish(&full, i)
		}
	}()
	for i := uint64(1); i <= n; i++ {
		for full.Load() != i {
			runtime.Gosched()
		}
		for j, v := range data {
			if v != i {
				t.Fatalf("word %d is %d after %d was published", j, v, i)
			}
		}
		cacheline.Publish(&free, i)
	}
}

func BenchmarkPublish(b *testing.B) {
	var word atomic.Uint64
	for b.Loop() {
		cacheline.Publish(&word, 1)
	}
}

func BenchmarkStore(b *testing.B) { // what Publish saves
	var word atomic.Uint64
	for b.Loop() {
		word.Store(1)
	}
}
