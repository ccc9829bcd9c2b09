//go:build zmq && cgo && linux

package zmq

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"
)

// zap answers ZeroMQ's question whether a client may come in: one that has the key pair of the job's
// members. It has a goroutine of its own, which owns its socket.
type zap struct {
	sock   *socket
	member string // public key
	group  sync.WaitGroup
	closed atomic.Bool
}

func newZap(ctx *zmq4.Context, member string) (*zap, error) {
	s, err := newSocket(ctx, zmq4.REP)
	if err != nil {
		return nil, err
	}
	if err := s.Bind("inproc://zeromq.zap.01"); err != nil {
		return nil, errors.Join(err, s.close())
	}
	z := &zap{sock: s, member: member}
	z.group.Go(z.run)
	return z, nil
}

func (z *zap) run() {
	defer z.sock.close()
	for !z.closed.Load() {
		if err := z.sock.sleep(time.Time{}); err != nil {
			return // the context has ended
		}
		for {
			ask, err := z.sock.RecvMessage(zmq4.DONTWAIT)
			if err != nil {
				break
			}
			_, _ = z.sock.SendMessage(z.answer(ask)) // to ZeroMQ itself, which waits for it, or has gone
		}
	}
}

// answer to a request: version, number, domain, address, identity, mechanism, the client's public key.
func (z *zap) answer(ask []string) []string {
	if len(ask) < 2 {
		return []string{"1.0", "", "500", "malformed request", "", ""}
	}
	ok := len(ask) == 7 && ask[0] == "1.0" && ask[5] == "CURVE" && len(ask[6]) == 32 && zmq4.Z85encode(ask[6]) == z.member
	if !ok {
		return []string{"1.0", ask[1], "400", "unknown key", "", ""}
	}
	return []string{"1.0", ask[1], "200", "OK", "", ""}
}

func (z *zap) stop() error {
	z.closed.Store(true)
	z.sock.rouse()
	z.group.Wait()
	return nil
}
