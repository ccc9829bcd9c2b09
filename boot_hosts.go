package weft

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-hpc/weft/cgo/ibverbs"
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/topo"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/shm"
	"github.com/weft-hpc/weft/internal/transport/tcp"
	"github.com/weft-hpc/weft/internal/transport/verbs"
	"github.com/weft-hpc/weft/rdma"
)

// connectHosts reaches the ranks of this host over shared memory, and all others over
// RDMA if every rank of the job can use it, else over TCP.
func connectHosts(ctx context.Context, l *link, client *control.Client, cfg *config) (*link, error) {
	env := client.Env()
	var inside *shm.Transport
	if env.LocalSize() > 1 {
		var err error
		if inside, err = openShm(&env); err != nil {
			return nil, err
		}
		l.arena = inside.Arena()
	}
	between, about, err := joinHosts(ctx, l, client, cfg)
	if err != nil {
		if inside != nil {
			inside.Close()
		}
		return nil, err
	}
	l.transports = []transport.Transport{between}
	l.route = routeAll(l.size, l.rank, between)
	l.via, l.hostsShare = about, true
	if inside != nil {
		// The engine sleeps in the first, and has a goroutine that sleeps in the other. It
		// closes them in this order: the devices let go of the arena first.
		l.transports = append(l.transports, inside)
		for _, rank := range env.LocalRanks {
			if rank != l.rank {
				l.route[rank] = inside
			}
		}
		l.via = "shm inside a host, " + about
	}
	return l, nil
}

// joinHosts joins the job and returns what reaches other hosts. All ranks must take the
// same, so each says why it could not use RDMA, if so.
func joinHosts(ctx context.Context, l *link, client *control.Client, cfg *config) (transport.Transport, string, error) {
	env := client.Env()
	t, err := listen(client)
	if err != nil {
		return nil, "", err
	}
	lack, err := l.join(ctx, client, t, probeVerbs(env.Device))
	if err == nil && lack.Ranks == 0 {
		var v *verbs.Transport
		if v, err = openVerbs(client, cfg, t, l.arena); err == nil {
			if l.arena == nil {
				l.arena = v.Arena()
			}
			l.wait(v)
			l.model = collective.NewModel(collective.OneHost, collective.InfiniBand)
			return v, "verbs between hosts, which every rank can use; " + v.About(), nil
		}
	}
	if err != nil {
		t.Close()
		return nil, "", err
	}
	if l.rank == 0 && lack.Ranks < l.size {
		notices(l.rank)(fmt.Sprintf("tcp between hosts though %d of %d ranks could use verbs: rank %d: %s", l.size-lack.Ranks, l.size, lack.First, lack.Text))
	}
	l.model = collective.NewModel(collective.OneHost, collective.Ethernet)
	return t, "tcp between hosts; " + t.About(), nil
}

// probeVerbs says why this rank could not use RDMA, in words; empty if it could.
func probeVerbs(device string) string {
	provider, err := rdma.Lookup(ibverbs.Name)
	if err == nil {
		err = verbs.Probe(provider, device, topo.System.OwnNode())
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// openVerbs opens the RDMA transport of a rank, which owns outOfBand unless there is an
// error. It uses the given arena, or makes one.
func openVerbs(client *control.Client, cfg *config, outOfBand *tcp.Transport, a *arena.Arena) (*verbs.Transport, error) {
	env := client.Env()
	provider, err := rdma.Lookup(ibverbs.Name)
	if err != nil {
		return nil, fmt.Errorf("%w: verbs: %w", ErrTransport, err)
	}
	own := env.Arena
	if a != nil {
		own = 0
	}
	t, err := verbs.Open(verbs.Config{Rank: env.Rank, Size: env.Size, Job: env.Job, Provider: provider, Device: env.Device,
		NUMA: topo.System.OwnNode(), Control: outOfBand, Arena: a, ArenaBytes: own, Read: cfg.rdmaRead, Notice: notices(env.Rank)})
	if err != nil {
		return nil, fmt.Errorf("%w: verbs: %w", ErrTransport, err)
	}
	return t, nil
}

// wait has waits poll as long as suits t, unless ranks share cores. Where that is long, so is
// the tick, which costs the more the slower the machine.
func (l *link) wait(t *verbs.Transport) {
	if l.policy.Spin > 0 {
		// A poll is a call into the library. The runtime takes the processor from a goroutine that is in one when
		// the I/O goroutine has the only other processor, so there is one more.
		l.policy.NoPause = true
		// Half of the watchdog's 10 ms, as a poller may be kept from its core for milliseconds.
		l.policy.Turn = 5 * time.Millisecond
		spareProcessor()
		l.policy.Spin = t.Patience()
		l.policy.Tick = max(l.policy.Tick, 2*t.Patience())
	}
}
