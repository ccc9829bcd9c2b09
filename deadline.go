package weft

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/control"
)

// limitKey finds a limitSource in a context of Main.
type limitKey struct{}

// limitSource knows when the job's time ends. The client is nil without a launcher.
type limitSource struct {
	client atomic.Pointer[control.Client]
}

// Deadline returns when the time of the job ends: that of the batch job, or weftrun's
// --timeout, whichever comes first. Ok is false when nobody has set a limit, or when
// it is not known yet: batch systems are asked after the start, which takes a moment. A program that
// saves its state before it is killed asks now and then, and leaves itself time enough.
//
// The context is that of Main, or one made from it. Its own Deadline is another thing: it ends
// calls, and nothing here does.
func Deadline(ctx context.Context) (at time.Time, ok bool) {
	s, _ := ctx.Value(limitKey{}).(*limitSource)
	if s == nil {
		return time.Time{}, false
	}
	c := s.client.Load()
	if c == nil {
		return time.Time{}, false
	}
	return c.Deadline()
}
