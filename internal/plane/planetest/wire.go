package planetest

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// wire is a connection that can be listened to, cut and changed. It forwards to a
// root.
type wire struct {
	addr string
	ln   net.Listener

	mu       sync.Mutex
	a, b     net.Conn
	said     []byte
	silent   bool
	changing bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: ln.Addr().String(), ln: ln}
	var group sync.WaitGroup
	group.Go(func() {
		a, err := ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", to)
		if err != nil {
			a.Close()
			return
		}
		w.mu.Lock()
		w.a, w.b = a, b
		w.mu.Unlock()
		group.Go(func() { w.pump(b, a, true) })
		w.pump(a, b, false)
	})
	t.Cleanup(func() {
		ln.Close()
		w.close()
		group.Wait()
	})
	return w
}

func (w *wire) pump(to, from net.Conn, toRoot bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			w.mu.Lock()
			silent := w.silent
			w.mu.Unlock()
			if !silent {
				to.Close()
			}
			return
		}
		w.mu.Lock()
		silent := w.silent
		if toRoot {
			w.said = append(w.said, buf[:n]...)
			if w.changing {
				buf[n-1] ^= 1
				w.changing = false
			}
		}
		w.mu.Unlock()
		if !silent {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

func (w *wire) toRoot() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Clone(w.said)
}

func (w *wire) cut() {
	w.mu.Lock()
	w.silent = true
	w.mu.Unlock()
}

func (w *wire) change() {
	w.mu.Lock()
	w.changing = true
	w.mu.Unlock()
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.a != nil {
		w.a.Close()
		w.b.Close()
	}
}
