package sim

import (
	"sync"
	"time"
)

// parking is where goroutines sleep until they are woken. A wake without a
// sleeper ends the next sleep.
type parking struct {
	mu       sync.Mutex
	sleepers []*sleeper
	woken    bool // a wake came when nobody slept
	closed   bool
	free     []*sleeper
}

type sleeper struct {
	wake  chan struct{} // holds the one token of a wake
	timer *time.Timer
}

// Wait implements transport.Transport. It parks the goroutine.
func (t *Transport) Wait(d time.Duration) { t.parked.sleep(d) }

func (p *parking) sleep(d time.Duration) {
	p.mu.Lock()
	if p.woken || p.closed || d <= 0 {
		p.woken = false
		p.mu.Unlock()
		return
	}
	var s *sleeper
	if n := len(p.free); n > 0 {
		s, p.free = p.free[n-1], p.free[:n-1]
		s.timer.Reset(d)
	} else {
		s = &sleeper{wake: make(chan struct{}, 1), timer: time.NewTimer(d)}
	}
	p.sleepers = append(p.sleepers, s)
	p.mu.Unlock()

	select {
	case <-s.wake:
	case <-s.timer.C:
	}
	s.timer.Stop() // nothing of it is delivered after this

	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.sleepers {
		if other == s { // not woken: the time was up
			p.sleepers = append(p.sleepers[:i], p.sleepers[i+1:]...)
			break
		}
	}
	select {
	case <-s.wake: // a wake that met the end of the time
	default:
	}
	p.free = append(p.free, s)
}

func (p *parking) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken = len(p.sleepers) == 0
	for i, s := range p.sleepers {
		s.wake <- struct{}{}
		p.sleepers[i] = nil
	}
	p.sleepers = p.sleepers[:0]
}

func (p *parking) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake()
}
