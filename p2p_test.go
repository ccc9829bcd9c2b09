package weft_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/wefttest"
)

// sizes are lengths in bytes around the thresholds of the protocols.
var sizes = []int{0, 1, 7, 63, 64, 65, 4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 1<<20 + 1}

func fill(buf []byte, seed int) {
	for i := range buf {
		buf[i] = byte(i*7 + seed + i>>8)
	}
}

func check(buf []byte, seed int) error {
	for i := range buf {
		if want := byte(i*7 + seed + i>>8); buf[i] != want {
			return fmt.Errorf("byte %d of %d is %d, want %d", i, len(buf), buf[i], want)
		}
	}
	return nil
}

func TestSendRecvSizes(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
				s := c.Scope(ctx)
				right, left := (c.Rank()+1)%n, (c.Rank()+n-1)%n
				for i, size := range sizes {
					out := make([]byte, size)
					fill(out, c.Rank()+i)
					weft.Isend(s, c, out, right, i)
					in := make([]byte, size)
					st, err := weft.Recv(ctx, c, in, left, i)
					if err != nil {
						return err
					}
					if st.Source != left || st.Tag != i || st.Count != size || st.Bytes != int64(size) {
						return fmt.Errorf("status %+v for %d bytes from %d", st, size, left)
					}
					if err := check(in, left+i); err != nil {
						return err
					}
				}
				return s.Wait()
			})
		})
	}
}

func TestOrder(t *testing.T) {
	const messages = 300
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() > 0 {
			s := c.Scope(ctx)
			for i := range messages {
				size := 1 + i%3*5000 // eager and rendezvous mixed
				buf := make([]int64, size)
				buf[0] = int64(i)
				weft.Isend(s, c, buf, 0, i%2)
			}
			return s.Wait()
		}
		next := map[[2]int]int64{{1, 1}: 1, {2, 1}: 1}
		for range 2 * messages {
			m, st, err := weft.RecvAppend[int64](ctx, c, nil, weft.AnySource, weft.AnyTag)
			if err != nil {
				return err
			}
			key := [2]int{st.Source, st.Tag}
			if m[0] != next[key] {
				return fmt.Errorf("message %d of rank %d, tag %d came when %d was due", m[0], st.Source, st.Tag, next[key])
			}
			next[key] += 2
		}
		return nil
	})
}

func TestTruncation(t *testing.T) {
	for _, size := range []int{2, 100, 5000, 100000} {
		wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
			if c.Rank() == 1 {
				out := make([]int32, size)
				for i := range out {
					out[i] = int32(i)
				}
				if err := weft.Send(ctx, c, out, 0, 7); err != nil {
					return err
				}
				return weft.Send(ctx, c, []int32{42}, 0, 7)
			}
			in := make([]int32, size-1)
			_, err := weft.Recv(ctx, c, in, 1, 7)
			if !errors.Is(err, weft.ErrTruncated) {
				return fmt.Errorf("error %v, want ErrTruncated", err)
			}
			e, ok := errors.AsType[*weft.Error](err)
			if !ok || e.Peer != 1 || e.Tag != 7 || e.Got != int64(4*size) || e.Want != int64(4*size-4) || !strings.HasPrefix(e.CallSite, "p2p_test.go:") {
				return fmt.Errorf("error %#v", e)
			}
			for i := range in {
				if in[i] != int32(i) {
					return fmt.Errorf("element %d is %d", i, in[i])
				}
			}
			var next [1]int32
			if _, err := weft.Recv(ctx, c, next[:], 1, 7); err != nil || next[0] != 42 {
				return fmt.Errorf("next message: %v, %v", next, err)
			}
			return nil
		})
	}
}

func TestWrongType(t *testing.T) {
	for _, size := range []int{1, 100000} {
		wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
			if c.Rank() == 1 {
				return errors.Join(weft.Send(ctx, c, make([]float32, size), 0, 0), weft.Send(ctx, c, []float64{3}, 0, 0))
			}
			in := make([]float64, size)
			if _, err := weft.Recv(ctx, c, in, 1, 0); !errors.Is(err, weft.ErrType) || !strings.Contains(err.Error(), "float32") {
				return fmt.Errorf("error %v, want ErrType", err)
			}
			if _, err := weft.Recv(ctx, c, in[:1], 1, 0); err != nil || in[0] != 3 {
				return fmt.Errorf("next message: %v, %v", in[0], err)
			}
			return nil
		})
	}
}

func TestBadArguments(t *testing.T) {
	type pair struct {
		A int
		S string
	}
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		buf := make([]int, 4)
		for _, test := range []struct {
			err  error
			want error
		}{
			{weft.Send(ctx, c, buf, 2, 0), weft.ErrRank},
			{weft.Send(ctx, c, buf, -1, 0), weft.ErrRank},
			{weft.Send(ctx, c, buf, 0, -1), weft.ErrTag},
			{weft.Send(ctx, c, buf, 0, weft.MaxTag+1), weft.ErrTag},
			{weft.Send(ctx, c, []pair{{}}, 0, 0), weft.ErrElemType},
			{weft.Send(ctx, c, []struct{}{{}}, 0, 0), weft.ErrElemType},
			{second(weft.Recv(ctx, c, buf, 2, 0)), weft.ErrRank},
			{second(weft.Recv(ctx, c, buf, -3, 0)), weft.ErrRank},
			{second(weft.Recv(ctx, c, buf, 0, -2)), weft.ErrTag},
			{second(weft.Recv(ctx, c, []*int{nil}, 0, 0)), weft.ErrElemType},
			{second(weft.Sendrecv(ctx, c, buf[:3], 0, 0, buf[1:], 0, 0)), weft.ErrOverlap},
		} {
			if !errors.Is(test.err, test.want) || !strings.Contains(test.err.Error(), "p2p_test.go:") {
				return fmt.Errorf("error %v, want %v with a call site", test.err, test.want)
			}
		}
		return nil
	})
}

// Bad arguments of a collective on one rank end it on all.
func TestBadArgumentsOfCollectives(t *testing.T) {
	buf := func() []int { return make([]int, 4) }
	for name, test := range map[string]struct {
		bad, good func(ctx context.Context, c *weft.Comm) error
		want      error
	}{
		"root": {func(ctx context.Context, c *weft.Comm) error { return weft.Bcast(ctx, c, buf(), 2) },
			func(ctx context.Context, c *weft.Comm) error { return weft.Bcast(ctx, c, buf(), 0) }, weft.ErrRank},
		"length": {func(ctx context.Context, c *weft.Comm) error {
			return weft.Allreduce(ctx, c, buf(), buf()[:3], weft.Sum[int]())
		}, func(ctx context.Context, c *weft.Comm) error {
			return weft.Allreduce(ctx, c, buf(), buf(), weft.Sum[int]())
		}, weft.ErrCount},
		"overlap": {func(ctx context.Context, c *weft.Comm) error {
			b := buf()
			return weft.Allreduce(ctx, c, b[:3], b[1:], weft.Sum[int]())
		}, func(ctx context.Context, c *weft.Comm) error {
			return weft.Allreduce(ctx, c, buf(), buf(), weft.Sum[int]())
		}, weft.ErrOverlap},
		"operator": {func(ctx context.Context, c *weft.Comm) error {
			return weft.Allreduce(ctx, c, buf(), buf(), weft.Op[int]{})
		}, func(ctx context.Context, c *weft.Comm) error {
			return weft.Allreduce(ctx, c, buf(), buf(), weft.Sum[int]())
		}, weft.ErrArgument},
		"blocks": {func(ctx context.Context, c *weft.Comm) error { return weft.Allgather(ctx, c, buf(), buf()) },
			func(ctx context.Context, c *weft.Comm) error { return weft.Allgather(ctx, c, buf(), make([]int, 8)) }, weft.ErrCount},
		"color": {func(ctx context.Context, c *weft.Comm) error { return second(c.Split(ctx, -7, 0)) },
			func(ctx context.Context, c *weft.Comm) error { return second(c.Split(ctx, 0, 0)) }, weft.ErrArgument},
	} {
		wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
			d, err := c.Dup(ctx, "d")
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				if err := test.bad(ctx, d); !errors.Is(err, test.want) || !strings.Contains(err.Error(), "p2p_test.go:") {
					return fmt.Errorf("%s: %v, want %v with a call site", name, err, test.want)
				}
				return nil
			}
			err = test.good(ctx, d)
			if err == nil { // done before rank 0 failed: the next one tells
				err = weft.Barrier(ctx, d)
			}
			if !errors.Is(err, weft.ErrRevoked) {
				return fmt.Errorf("%s on the other rank: %v, want ErrRevoked", name, err)
			}
			return nil
		})
	}
}

func second[A, B any](_ A, b B) B { return b }

func TestNoRank(t *testing.T) {
	wefttest.Run(t, 1, func(ctx context.Context, c *weft.Comm) error {
		buf := []int{5}
		st, err := weft.Sendrecv(ctx, c, buf, weft.NoRank, 0, make([]int, 1), weft.NoRank, 0)
		if err != nil || st.Source != weft.NoRank || st.Count != 0 {
			return fmt.Errorf("%+v, %v", st, err)
		}
		s := c.Scope(ctx)
		r := weft.Irecv(s, c, buf, weft.NoRank, 0)
		if st, done, err := r.Test(); !done || err != nil || st.Source != weft.NoRank {
			return fmt.Errorf("%+v, %v, %v", st, done, err)
		}
		return s.Wait()
	})
}

func TestSsendWaits(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		s := c.Scope(ctx)
		if c.Rank() == 0 {
			r := weft.Issend(s, c, []byte{1}, 1, 0)
			if _, err := weft.Recv(ctx, c, make([]byte, 1), 1, 1); err != nil { // after the peer has polled
				return err
			}
			if _, done, _ := r.Test(); done {
				return errors.New("Issend was done before its receive")
			}
			if err := weft.Send(ctx, c, []byte{1}, 1, 2); err != nil {
				return err
			}
			return s.Wait()
		}
		if _, err := weft.Probe(ctx, c, 0, 0); err != nil {
			return err
		}
		if err := weft.Send(ctx, c, []byte{1}, 0, 1); err != nil {
			return err
		}
		if _, err := weft.Recv(ctx, c, make([]byte, 1), 0, 2); err != nil {
			return err
		}
		return second(weft.Recv(ctx, c, make([]byte, 1), 0, 0))
	})
}

func TestCancel(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		other := 1 - c.Rank()
		short, stop := context.WithCancel(ctx)
		defer stop()
		s := c.Scope(short)
		r := weft.Irecv(s, c, make([]int, 1), other, 9)
		big := weft.Isend(s, c, make([]int, 100000), other, 8)
		if !r.Cancel() {
			return errors.New("a posted receive could not be withdrawn")
		}
		if _, err := r.Wait(ctx); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("withdrawn receive: %v", err)
		}
		if err := weft.Barrier(ctx, c); err != nil {
			return err
		}
		big.Cancel()
		if _, err := big.Wait(ctx); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("withdrawn send: %v", err)
		}
		stop()
		if _, err := weft.Recv(short, c, make([]int, 1), other, 9); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("receive with an ended context: %v", err)
		}
		if err := weft.Barrier(ctx, c); err != nil {
			return err
		}
		st, err := weft.Sendrecv(ctx, c, []int{c.Rank()}, other, 9, make([]int, 1), other, 9)
		if err != nil || st.Count != 1 {
			return fmt.Errorf("next message: %+v, %v", st, err)
		}
		return nil
	})
}

func TestManyGoroutines(t *testing.T) {
	const goroutines, messages = 8, 50
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		errs := make(chan error, 2*goroutines)
		var got atomic.Int64
		for g := range goroutines {
			go func() {
				for i := range messages {
					if err := weft.Send(ctx, c, []int{g, i}, 1-c.Rank(), g); err != nil {
						errs <- err
						return
					}
				}
				errs <- nil
			}()
			go func() {
				buf := make([]int, 2)
				for i := range messages {
					if _, err := weft.Recv(ctx, c, buf, 1-c.Rank(), g); err != nil {
						errs <- err
						return
					}
					if buf[0] != g || buf[1] != i {
						errs <- fmt.Errorf("goroutine %d got %v as message %d", g, buf, i)
						return
					}
					got.Add(1)
				}
				errs <- nil
			}()
		}
		for range 2 * goroutines {
			if err := <-errs; err != nil {
				return err
			}
		}
		if got.Load() != goroutines*messages {
			return fmt.Errorf("%d messages", got.Load())
		}
		return nil
	})
}

func TestMessages(t *testing.T) {
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() > 0 {
			for i := range 20 {
				if err := weft.Send(ctx, c, make([]float64, i*100), 0, c.Rank()); err != nil {
					return err
				}
			}
			return nil
		}
		n, elements := 0, 0
		for m, err := range weft.Messages[float64](ctx, c, weft.AnySource, weft.AnyTag) {
			if err != nil {
				return err
			}
			if m.Tag != m.Source {
				return fmt.Errorf("%+v", m.Status)
			}
			elements += len(m.Data)
			if n++; n == 40 {
				break
			}
		}
		if elements != 2*100*190 {
			return fmt.Errorf("%d elements", elements)
		}
		return nil
	})
}

func TestValues(t *testing.T) {
	type result struct {
		Name  string
		Parts map[string][]float64
	}
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 0 {
			v := result{"x", map[string][]float64{"a": make([]float64, 100000)}}
			return errors.Join(weft.SendValue(ctx, c, v, 1, 3), weft.SendValue(ctx, c, v, 1, 4))
		}
		v, st, err := weft.RecvValue[result](ctx, c, 0, weft.AnyTag)
		if err != nil || st.Tag != 3 || v.Name != "x" || len(v.Parts["a"]) != 100000 {
			return fmt.Errorf("%v %+v", err, st)
		}
		if _, err := weft.Recv(ctx, c, make([]byte, 10), 0, 4); !errors.Is(err, weft.ErrType) {
			return fmt.Errorf("a value received as bytes: %v", err)
		}
		return nil
	})
}

func TestPanicAndErrorEndTheWorld(t *testing.T) {
	for name, fail := range map[string]func() error{
		"panic": func() error { panic("boom") },
		"error": func() error { return errors.New("boom") },
	} {
		err := wefttest.Try(t, 5, func(ctx context.Context, c *weft.Comm) error {
			if c.Rank() == 3 {
				return fail()
			}
			return weft.Barrier(ctx, c)
		})
		if err == nil || !strings.HasPrefix(err.Error(), "rank 3: ") || !strings.Contains(err.Error(), "boom") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
