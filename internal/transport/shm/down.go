package shm

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/transport"
)

// MarkDown says that the process of a rank has ended, and why: shared memory
// cannot tell. Any goroutine may call it. A later Poll delivers what the rank had
// sent and reports it down once; a Wait ends.
//
// The process must have been reaped, or be this one: a pull that waits for it
// takes the copying over, which is safe only because a process that does not
// exist writes no more.
func (t *Transport) MarkDown(peer int, err error) {
	if uint(peer) >= uint(len(t.index)) || t.index[peer] < 0 || !t.users.enter() {
		return
	}
	defer t.users.leave()
	i := int(t.index[peer])
	if t.dead[i].Swap(true) {
		return
	}
	t.mu.Lock()
	t.marks = append(t.marks, downReport{i, fmt.Errorf("shm: rank %d on this host has ended: %w", peer, err)})
	t.mu.Unlock()
	t.attention.Add(1)
	t.wake()
}

// violation ends a peer that breaks the rules. Nothing more is taken from it.
func (t *Transport) violation(i int, format string, args ...any) {
	err := fmt.Errorf("shm: rank %d on this host broke the protocol: "+format+"; its memory is damaged, or it runs another version",
		append([]any{t.world[i]}, args...)...)
	t.cut(i, err)
	t.errs = append(t.errs, downReport{i, err})
	t.busy = true
}

// cut drops everything that concerns a peer. Idempotent; the first error stays.
func (t *Transport) cut(i int, err error) {
	if t.downs[i] != nil {
		return
	}
	t.downs[i] = err
	t.lanes[i].close()
	if b := t.out[i].bulk; b != nil {
		b.drop()
	}
}

// bury reports the peers that went down.
func (t *Transport) bury(s transport.Sink) int {
	n := 0
	for k := 0; k < len(t.errs); k++ { // delivering may find violations
		d := t.errs[k]
		if t.downs[d.index] == nil {
			// It is dead, so what it had sent is all there is.
			for l := &t.lanes[d.index]; l.active && t.downs[d.index] == nil; {
				m := t.drain(l, s)
				if m == 0 {
					break
				}
				n += m
			}
			if t.downs[d.index] != nil { // a violation, which follows in t.errs
				continue
			}
			t.cut(d.index, d.err)
		} else if t.downs[d.index] != d.err {
			continue // reported before
		}
		s.PeerDown(t.world[d.index], d.err)
		n++
	}
	t.errs = t.errs[:0]
	for i := 0; i < len(t.active); {
		if t.downs[t.active[i].from] != nil {
			t.active[i].active = false
			t.active = remove(t.active, i)
		} else {
			i++
		}
	}
	return n
}
