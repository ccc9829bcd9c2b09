package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
)

// TestWholePayload: a payload that one write brings needs no message, one of several writes, of several rails or
// out of the order of frames needs one.
func TestWholePayload(t *testing.T) {
	for name, c := range map[string]struct {
		rails, n int
		skip     uint32 // in the numbers of frames
		messages uint64
	}{
		"one byte":        {1, 1, 0, 0},
		"one write":       {1, 1 << 20, 0, 0},
		"two writes":      {1, 1<<20 + 1, 0, 1},
		"another number":  {1, 1000, 1, 1},
		"two rails":       {2, 1000, 0, 1},
		"two rails split": {2, 2 << 20, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := ranksOf(t, 2, options{tune: quick, rails: c.rails})
			meet(t, r[0], r[1])
			src, dst := arenaBytes(t, w, 0, c.n), arenaBytes(t, w, 1, c.n)
			for i := range src {
				src[i] = byte(i*7 + i>>12)
			}
			r[1].dest = dst
			for k := range uint32(3) {
				clear(dst)
				region, err := r[1].Expose(0, 7, dst)
				if err != nil {
					t.Fatal(err)
				}
				h := dataHeader(7, region)
				h.Seq = 1 + k + c.skip*(k+1) // meet sent number 0
				before := r[0].Stats().Messages
				if err := r[0].SendBulk(1, h, src, 1); err != nil {
					t.Fatal(err)
				}
				poll(t, "the payload", func() bool { return r[1].landed[0] == int(k)+1 && r[0].sent[1] == int(k)+1 }, r...)
				if got := r[0].Stats().Messages - before; got != c.messages {
					t.Errorf("payload %d: %d messages, want %d", k, got, c.messages)
				}
				if got := r[1].header; got.ID != 7 || got.Seq != h.Seq {
					t.Errorf("payload %d landed with the header %+v", k, got)
				}
				if !bytes.Equal(dst, src) {
					t.Errorf("payload %d is not what was sent", k)
				}
			}
		})
	}
}

// arenaBytes returns n bytes of a block that is registered.
func arenaBytes(t *testing.T, w *world, rank, n int) []byte {
	t.Helper()
	b, err := w.alloc(rank, max(n, 64<<10))
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// TestWholeTooLong: a payload that is longer than its exposure, in a block that has room for it, is refused.
func TestWholeTooLong(t *testing.T) {
	w, r := ranksOf(t, 2, options{tune: quick})
	meet(t, r[0], r[1])
	src, dst := arenaBytes(t, w, 0, 64<<10), arenaBytes(t, w, 1, 64<<10)
	region, err := r[1].Expose(0, 7, dst[:1000])
	if err != nil {
		t.Fatal(err)
	}
	r[1].dest = dst
	h := dataHeader(7, region)
	h.Seq = 1
	if err := r[0].SendBulk(1, h, src[:1001], 1); err != nil {
		t.Fatal(err)
	}
	poll(t, "the receiver reports it", func() bool { return r[1].down[0] != nil }, r...)
	contains(t, r[1].down[0], "1001 bytes as the payload for an exposure of 1000")
	if r[1].landed[0] > 0 {
		t.Error("the payload was reported")
	}
}

// TestNoRoomForTheMessage: a payload that needs a message registers nothing as long as there is no room for it.
func TestNoRoomForTheMessage(t *testing.T) {
	_, r := ranksOf(t, 2, options{tune: quick})
	meet(t, r[0], r[1])
	src, dst := make([]byte, 1<<20+1), make([]byte, 1<<20+1)
	region, err := r[1].Expose(0, 7, dst)
	if err != nil {
		t.Fatal(err)
	}
	r[1].dest = dst
	sent := uint32(1)
	for ; err == nil; sent++ { // until r[1], which does not poll, has no receive left
		err = r[0].Send(1, eager(0), nil)
	}
	h := dataHeader(7, region)
	h.Seq = sent
	for range 3 {
		if err := r[0].SendBulk(1, h, src, 1); !errors.Is(err, transport.ErrAgain) {
			t.Fatalf("SendBulk: %v, want ErrAgain", err)
		}
	}
	if n := r[0].Stats().Registrations; n != 0 {
		t.Errorf("%d registrations for a payload that was not begun", n)
	}
	poll(t, "room", func() bool { return !errors.Is(r[0].SendBulk(1, h, src, 1), transport.ErrAgain) }, r...)
	poll(t, "the payload", func() bool { return r[1].landed[0] == 1 && r[0].sent[1] == 1 }, r...)
	if n := r[0].Stats().Registrations; n != 1 {
		t.Errorf("%d registrations for one payload", n)
	}
}
