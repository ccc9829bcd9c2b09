package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A rule says what happens to the frames that one end sends.
type rule struct {
	match   class         // the frames that all but cut is for
	drop    float64       // probability that a frame is lost
	dup     float64       // probability that a frame arrives twice
	reorder float64       // probability that a frame is overtaken by one to three later ones
	delay   time.Duration // of every frame
	next    int           // this many frames are lost, then none by this
	cut     bool          // nothing passes, of any kind
}

// counters count frames; what a rule did, and what went out.
type counters struct {
	in, roce, out, bytes                         uint64
	dropped, duplicated, reordered, delayed, cut uint64
	overflow                                     uint64 // lost because too many frames were waiting already
}

func (c *counters) String() string {
	return fmt.Sprintf("in %d (roce %d) out %d bytes %d dropped %d duplicated %d reordered %d delayed %d cut %d overflow %d",
		c.in, c.roce, c.out, c.bytes, c.dropped, c.duplicated, c.reordered, c.delayed, c.cut, c.overflow)
}

const (
	maxWaiting  = 4096                  // frames that one direction keeps
	reorderTime = 20 * time.Millisecond // an overtaken frame goes out after this even if nothing overtakes it
)

// A waiting frame goes out when it is due, or when enough others have overtaken it.
type waiting struct {
	frame  []byte
	due    time.Time
	behind int // so many frames still overtake it; 0: only time counts
}

// A direction is the way from one end to the other. It has no clock and sends
// nothing itself: the same frames, times, seed and commands give the same
// result. Not safe for use by several goroutines.
type direction struct {
	name string // of the sending end: "a" or "b"
	rule rule
	counters
	random  *rand.Rand
	waiting []waiting // by due
}

func newDirection(name string, seed uint64) *direction {
	return &direction{name: name, random: rand.New(rand.NewPCG(seed, uint64(name[0])))}
}

// pass takes a frame that arrived at now, and appends to out what is to be sent
// at once. It keeps no reference to frame; out may have one.
func (d *direction) pass(out [][]byte, frame []byte, now time.Time) [][]byte {
	d.in++
	if roceFrames.has(frame) {
		d.roce++
	}
	if d.rule.cut {
		d.counters.cut++
		return out
	}
	if !d.rule.match.has(frame) {
		return d.overtake(d.send(out, frame))
	}
	// Always three draws, so that one rate does not change what another one hits.
	drop, dup, reorder := d.random.Float64(), d.random.Float64(), d.random.Float64()
	behind := 1 + d.random.IntN(3)
	if d.rule.next > 0 {
		d.rule.next--
		drop = -1
	}
	if drop < d.rule.drop {
		d.dropped++
		return out
	}
	copies := 1
	if dup < d.rule.dup {
		d.duplicated++
		copies = 2
	}
	if reorder < d.rule.reorder {
		d.reordered++
		for range copies {
			d.keep(frame, now.Add(d.rule.delay+reorderTime), behind)
		}
		return out
	}
	if d.rule.delay > 0 {
		d.delayed++
		for range copies {
			d.keep(frame, now.Add(d.rule.delay), 0)
		}
		return out
	}
	for range copies {
		out = d.send(out, frame)
	}
	return d.overtake(out)
}

// due appends to out the frames whose time has come.
func (d *direction) due(out [][]byte, now time.Time) [][]byte {
	n := 0
	for n < len(d.waiting) && !d.waiting[n].due.After(now) {
		w := d.waiting[n]
		n++
		if d.rule.cut {
			d.counters.cut++
			continue
		}
		out = d.send(out, w.frame)
	}
	d.waiting = append(d.waiting[:0], d.waiting[n:]...)
	return out
}

// nextDue is when due has something to do, if anything waits.
func (d *direction) nextDue() (time.Time, bool) {
	if len(d.waiting) == 0 {
		return time.Time{}, false
	}
	return d.waiting[0].due, true
}

func (d *direction) send(out [][]byte, frame []byte) [][]byte {
	d.out++
	d.bytes += uint64(len(frame))
	return append(out, frame)
}

// overtake counts one frame that went out, and appends the waiting ones that
// have been overtaken often enough.
func (d *direction) overtake(out [][]byte) [][]byte {
	kept := d.waiting[:0]
	for _, w := range d.waiting {
		if w.behind > 0 {
			if w.behind--; w.behind == 0 {
				out = d.send(out, w.frame)
				continue
			}
		}
		kept = append(kept, w)
	}
	d.waiting = kept
	return out
}

func (d *direction) keep(frame []byte, due time.Time, behind int) {
	if len(d.waiting) >= maxWaiting {
		d.overflow++
		return
	}
	w := waiting{append([]byte(nil), frame...), due, behind}
	i := len(d.waiting)
	for i > 0 && d.waiting[i-1].due.After(due) {
		i--
	}
	d.waiting = append(d.waiting, waiting{})
	copy(d.waiting[i+1:], d.waiting[i:])
	d.waiting[i] = w
}
