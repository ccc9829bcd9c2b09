package main

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/cgo/ibverbs"
	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/topo"
	"github.com/weft-hpc/weft/internal/transport/shm"
	"github.com/weft-hpc/weft/internal/transport/tcp"
	"github.com/weft-hpc/weft/rdma"
)

// probe tries what this build has, as a job would: to see a device proves
// nothing.
func (i *info) probe() {
	s, t, v := probeShm(), probeTCP(), i.probeVerbs()
	i.Transports = []transportInfo{{"shm", s}, {"tcp", t}, {"verbs", v}}
	i.Choice = i.choices(s, t, v)
}

// probeVerbs opens every RDMA device, and chooses a port and an address as a rank would.
func (i *info) probeVerbs() topo.Answer {
	p, err := rdma.Lookup(ibverbs.Name)
	if err != nil {
		return topo.Answer{State: topo.Absent, Why: err.Error()}
	}
	i.Verbs = gatherRDMA(p, topo.System.OwnNode())
	return i.Verbs.verbsAnswer()
}

// choices says what a job would get on this machine, and why.
func (i *info) choices(shm, tcp, verbs topo.Answer) []string {
	inside := "between ranks of this host: shm, as it works here"
	switch {
	case shm.State == topo.Present:
	case tcp.State == topo.Present:
		inside = "between ranks of this host: tcp, as shm is " + shm.String()
	default:
		inside = "between ranks of this host: nothing, as shm is " + shm.String() + " and tcp " + tcp.String()
	}
	between := "to other hosts: tcp, as verbs is " + verbs.String()
	switch {
	case verbs.State == topo.Present:
		between = "to other hosts: verbs on " + verbs.Why + ", if all ranks of the job can use it, else tcp"
	case tcp.State != topo.Present:
		between = "to other hosts: nothing, as verbs is " + verbs.String() + " and tcp " + tcp.String()
	}
	out := []string{inside, between}
	if n := len(i.Cores.Value); n > 0 {
		out = append(out, fmt.Sprintf("binding: up to %d ranks get a core each; more are not bound, and sleep early when they wait", n))
	}
	return out
}

// probeShm makes a segment and maps it.
func probeShm() topo.Answer {
	const arena = 2 << 20
	ranks, err := shm.Local("probe", 2, arena)
	if err != nil {
		return topo.Answer{State: topo.Absent, Why: err.Error()}
	}
	for _, r := range ranks {
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		return topo.Answer{State: topo.Unknown, Why: "it opens, but does not close: " + err.Error()}
	}
	return topo.Answer{State: topo.Present, Why: "a segment for 2 ranks was made and mapped"}
}

// probeTCP listens where a rank would.
func probeTCP() topo.Answer {
	t, err := tcp.Listen(tcp.Config{Rank: 0, Size: 2, Secret: control.NewSecret(), Job: "probe-" + rand.Text()[:6]})
	if err != nil {
		return topo.Answer{State: topo.Absent, Why: err.Error()}
	}
	about := t.About()
	if err := t.Close(); err != nil {
		return topo.Answer{State: topo.Unknown, Why: about + ", but it does not close: " + err.Error()}
	}
	return topo.Answer{State: topo.Present, Why: about}
}
