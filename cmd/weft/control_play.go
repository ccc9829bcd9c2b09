package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/weft-hpc/weft/internal/plane"
)

// playMembers is a process that plays members, until its input ends.
func playMembers(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var p part
	if err := json.Unmarshal(line, &p); err != nil {
		return err
	}
	way, err := plane.Lookup(p.Way)
	if err != nil {
		return err
	}
	files := openFiles()
	fmt.Fprintln(stdout, "ready")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	cfg := plane.Config{Job: p.Job, Secret: p.Secret, Build: version()}
	members := make([]*player, p.Count)
	errs := make(chan error, p.Count)
	limit := make(chan struct{}, 16) // that join at once
	for i := range members {
		go func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			m := &player{ready: make(chan struct{}), granted: ctlCredit}
			m.credit = sync.NewCond(&m.mu)
			var err error
			m.m, err = way.Join(context.Background(), cfg, memberName(p.First+i), []string{p.Addr}, m)
			if err == nil {
				close(m.ready)
				members[i] = m
			}
			errs <- err
		}()
	}
	for range members {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, openFiles()-files)
	_, err = io.Copy(io.Discard, in)
	var group sync.WaitGroup
	for _, m := range members {
		group.Go(func() {
			m.stop()
			m.m.Close()
		})
	}
	group.Wait()
	return err
}

// player is a member that does what the root says.
type player struct {
	m     plane.Member
	ready chan struct{} // m is set

	mu       sync.Mutex
	credit   *sync.Cond // on mu: granted, stopped
	granted  int
	stopped  bool
	flooding sync.WaitGroup
}

func (p *player) Up(int)             {}
func (p *player) Refused(int, error) {}
func (p *player) Down(int, error)    { p.stop() }

func (p *player) Frame(_ int, b []byte) {
	<-p.ready
	switch b[0] {
	case ctlEcho:
		p.m.Send(b)
	case ctlGrant:
		p.mu.Lock()
		p.granted += int(binary.LittleEndian.Uint32(b[1:]))
		p.credit.Signal()
		p.mu.Unlock()
	case ctlFlood:
		p.flooding.Go(p.flood)
	case ctlStop:
		p.stop()
	case ctlBurst:
		word := make([]byte, 64)
		word[0] = ctlBurst
		for range binary.LittleEndian.Uint32(b[1:]) {
			p.m.Send(word)
		}
	}
}

// flood sends as much as it is granted.
func (p *player) flood() {
	piece := make([]byte, ctlPiece)
	piece[0] = ctlData
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.granted < len(piece) && !p.stopped {
			p.credit.Wait()
		}
		if p.stopped {
			return
		}
		p.granted -= len(piece)
		p.mu.Unlock()
		p.m.Send(piece)
		p.mu.Lock()
	}
}

func (p *player) stop() {
	p.mu.Lock()
	p.stopped = true
	p.credit.Signal()
	p.mu.Unlock()
	p.flooding.Wait()
}
