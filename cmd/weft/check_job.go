package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/fxamacker/cbor/v2"

	"github.com/weft-hpc/weft/internal/check"
	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/direct"
	"github.com/weft-hpc/weft/internal/transport/shm"
)

// checkJob is a weft check that is a rank. The first rank of each host checks it, and tries to
// reach all others. They tell each other of it over the control plane, which
// works where connections between ranks do not.
type checkJob struct {
	client *control.Client
	direct *direct.Rank
}

// findJob returns the job that this process is a rank of, or nil.
func findJob(ctx context.Context) (*checkJob, error) {
	client, err := control.FromEnv()
	if err != nil {
		return nil, err
	}
	if client != nil {
		return &checkJob{client: client}, nil
	}
	r, err := direct.Join(ctx, direct.ThisProcess(shm.Create))
	if err != nil || r == nil {
		return nil, err
	}
	return &checkJob{client: r.Client, direct: r}, nil
}

// checkCard is what the first rank of a host tells the others.
type checkCard struct {
	Facts *check.Facts
	Addr  string // where it answers probes; "" if nowhere
}

func (j *checkJob) check(ctx context.Context, o *checkOptions, w io.Writer) (err error) {
	defer func() {
		err = errors.Join(err, j.client.Close())
		if j.direct != nil {
			err = errors.Join(err, j.direct.Close())
		}
	}()
	if j.direct != nil {
		j.client.Watch(j.direct.Heard)
	}
	env := j.client.Env()
	if env.LocalRank != 0 { // another one does it
		if _, err := j.client.Join(ctx, nil, ""); err != nil {
			return err
		}
		return j.leave(ctx)
	}
	want := o.iface
	if want == "" {
		want = env.Interface
	}
	facts, addr := gatherFacts(want)
	facts.Host, facts.Ranks, facts.Size = env.Host, env.LocalSize(), env.Size
	mine := &checkCard{Facts: facts}
	if addr != "" {
		l, err := check.Listen(net.JoinHostPort(addr, "0"), j.client.Secret())
		if err != nil {
			return err
		}
		defer l.Close() // after all have left
		mine.Addr = l.Addr()
	}
	hosts, silent, err := j.exchange(ctx, mine)
	if err != nil {
		return err
	}
	all := check.Judge(facts)
	if env.Rank == 0 {
		var others []*check.Facts
		for _, h := range hosts {
			others = append(others, h.Facts)
		}
		all = append(all, check.Compare(others)...)
		all = append(all, silent...)
	}
	all = append(all, j.probe(ctx, mine, hosts)...)
	found := report(w, o, facts, all)
	if err := j.leave(ctx); err != nil {
		return err
	}
	return found
}

// exchange returns what all hosts tell, by their first ranks. In a job that goes on without ranks which died there is a
// finding for each that told nothing before.
func (j *checkJob) exchange(ctx context.Context, mine *checkCard) (hosts []*checkCard, silent []check.Finding, err error) {
	b, err := cbor.Marshal(mine)
	if err != nil {
		return nil, nil, err
	}
	if _, err := j.client.Join(ctx, b, ""); err != nil {
		return nil, nil, err
	}
	for rank := range j.client.Env().Size {
		b, err := j.client.Card(ctx, rank)
		if e, ok := errors.AsType[control.Event](err); ok && e.GoesOn {
			silent = append(silent, check.Finding{Host: "all hosts", Check: fmt.Sprintf("rank %d", rank), State: check.Unknown, Text: "no word of its host: " + e.Error()})
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if len(b) == 0 {
			continue
		}
		c := new(checkCard)
		if err := cbor.Unmarshal(b, c); err != nil {
			return nil, nil, fmt.Errorf("what rank %d found cannot be read: %w; install one build of weft on all hosts", rank, err)
		}
		if c.Facts == nil {
			return nil, nil, fmt.Errorf("rank %d told of no facts; install one build of weft on all hosts", rank)
		}
		hosts = append(hosts, c)
	}
	return hosts, silent, nil
}

// probe tries to reach all other hosts, some at a time.
func (j *checkJob) probe(ctx context.Context, mine *checkCard, hosts []*checkCard) []check.Finding {
	const atOnce = 16
	room := make(chan struct{}, atOnce)
	found := make([][]check.Finding, len(hosts))
	var group sync.WaitGroup
	for i, h := range hosts {
		to := h.Facts.Host
		if to == mine.Facts.Host {
			continue
		}
		if h.Addr == "" {
			found[i] = []check.Finding{{Host: mine.Facts.Host, Check: "reach " + to, State: check.Unknown, Text: "it has no address that others could dial"}}
			continue
		}
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			r, err := check.Probe(ctx, h.Addr, j.client.Secret())
			found[i] = check.JudgeProbe(mine.Facts.Host, to, h.Addr, mine.Facts.Interface.Value.Name, r, err)
		})
	}
	group.Wait()
	var all []check.Finding
	for _, f := range found {
		all = append(all, f...)
	}
	return all
}

// leave ends this rank's part when all others have come as far.
func (j *checkJob) leave(ctx context.Context) error {
	if err := j.client.Leave(ctx, nil); err != nil {
		return err
	}
	if j.direct != nil {
		return j.direct.Finish(ctx)
	}
	return nil
}
