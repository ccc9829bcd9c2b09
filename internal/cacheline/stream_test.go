package cacheline_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-hpc/weft/internal/cacheline"
)

// A copy is whole, and touches nothing beside, wherever it begins and ends.
func TestStream(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]byte, 5000)
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	for _, n := range []int{0, 1, 63, 64, 127, 128, 129, 191, 192, 193, 255, 256, 1000, 4096, 4097} {
		for range 200 {
			from, to := rng.IntN(130), rng.IntN(130)
			got, want := bytes.Repeat([]byte{0xA5}, 5000), bytes.Repeat([]byte{0xA5}, 5000)
			cacheline.Stream(got[to:to+n], src[from:from+n])
			copy(want[to:to+n], src[from:from+n])
			if !bytes.Equal(got, want) {
				t.Fatalf("%d bytes from offset %d to offset %d were not copied as they are", n, from, to)
			}
		}
	}
}

func BenchmarkStream(b *testing.B) {
	for _, n := range []int{64 << 10, 4 << 20, 256 << 20} {
		dst, src := make([]byte, n), make([]byte, n)
		const piece = 256 << 10
		run := func(name string, do func(dst, src []byte)) {
			b.Run(fmt.Sprintf("%s/%dK", name, n>>10), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					for at := 0; at < n; at += piece {
						end := min(at+piece, n)
						do(dst[at:end], src[at:end])
					}
				}
			})
		}
		run("stream", cacheline.Stream)
		run("copy", func(dst, src []byte) { copy(dst, src) })
	}
}
