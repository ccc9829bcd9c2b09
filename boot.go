package weft

import (
	"context"
	"fmt"
	"os"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/shm"
	"github.com/weft-hpc/weft/internal/transport/tcp"
)

// connect chooses the transports of a rank that weftrun started, and joins the
// job. Nothing falls back silently: a transport that was asked for works or is
// an error.
func connect(ctx context.Context, cfg *config, client *control.Client) (*link, error) {
	env := client.Env()
	spareProcessor()
	l := &link{node: env.LocalRanks[0], rank: env.Rank, size: env.Size, policy: processPolicy(env.Oversubscribed),
		crowded: env.Oversubscribed && env.LocalSize() == env.Size} // all ranks have to agree on that
	asked := env.Transport
	if cfg.transport != "" {
		asked = cfg.transport
	}
	oneHost := env.LocalSize() == env.Size
	switch asked {
	case "", "auto":
		if oneHost {
			return connectShm(ctx, l, client, "all ranks are on this host")
		}
		return connectHosts(ctx, l, client, cfg)
	case "shm":
		if !oneHost {
			return nil, fmt.Errorf("%w: shm: %d of %d ranks are on other hosts; use --transport auto", ErrTransport, env.Size-env.LocalSize(), env.Size)
		}
		return connectShm(ctx, l, client, "as asked")
	case "tcp":
		return connectTCP(ctx, l, client, "as asked")
	case "verbs":
		return connectVerbs(ctx, l, client, cfg, "as asked")
	}
	return nil, fmt.Errorf("%w: there is no transport %q; use auto, shm, tcp or verbs", ErrTransport, asked)
}

// openShm maps the memory that the ranks of this host share.
func openShm(env *control.Env) (*shm.Transport, error) {
	if env.Segment == nil {
		return nil, fmt.Errorf("%w: shm: the launcher gave no segment of shared memory; start the job with weftrun of this version", ErrTransport)
	}
	t, err := shm.Open(env.Segment, shm.Config{Index: env.LocalRank, World: env.LocalRanks, Oversubscribed: env.Oversubscribed})
	if err != nil {
		return nil, fmt.Errorf("%w: shm: %w", ErrTransport, err)
	}
	return t, nil
}

func connectShm(ctx context.Context, l *link, client *control.Client, why string) (*link, error) {
	env := client.Env()
	t, err := openShm(&env)
	if err != nil {
		return nil, err
	}
	l.model = collective.NewModel(collective.OneHost, collective.OneHost)
	if _, err := client.Join(ctx, nil, ""); err != nil {
		t.Close()
		return nil, err
	}
	l.transports = []transport.Transport{t}
	l.route = routeAll(l.size, l.rank, t)
	l.reachesAll = l.size <= 64 // each lane takes a few pages
	l.arena = t.Arena()
	l.via = "shm: " + why
	return l, nil
}

// listen opens the TCP transport of a rank.
func listen(client *control.Client) (*tcp.Transport, error) {
	env := client.Env()
	t, err := tcp.Listen(tcp.Config{Rank: env.Rank, Size: env.Size, Job: env.Job, Secret: client.Secret(),
		Interface: env.Interface, Loopback: env.LocalSize() == env.Size, Notice: notices(env.Rank)})
	if err != nil {
		return nil, fmt.Errorf("%w: tcp: %w", ErrTransport, err)
	}
	return t, nil
}

// join joins the job with the card of t, which asks for those of the others when it needs them. It
// returns what is lacking in all ranks.
func (l *link) join(ctx context.Context, client *control.Client, t *tcp.Transport, lacks string) (control.Lack, error) {
	l.nodes = client.Env().Nodes
	t.FindCards(func(rank int) error {
		return client.Find(rank, func(card []byte, err error) { t.Found(rank, card, err) })
	})
	return client.Join(ctx, t.Card(), lacks)
}

// notices prints what a transport has to tell the user.
func notices(rank int) func(string) {
	return func(line string) { fmt.Fprintf(os.Stderr, "weft: rank %d: %s\n", rank, line) }
}

// connectVerbs reaches all ranks over RDMA. TCP connects them, and sees who dies.
func connectVerbs(ctx context.Context, l *link, client *control.Client, cfg *config, why string) (*link, error) {
	outOfBand, err := listen(client)
	if err != nil {
		return nil, err
	}
	t, err := openVerbs(client, cfg, outOfBand, nil)
	if err != nil {
		outOfBand.Close()
		return nil, err
	}
	if _, err := l.join(ctx, client, outOfBand, ""); err != nil {
		t.Close()
		return nil, err
	}
	l.model = collective.NewModel(collective.InfiniBand, collective.InfiniBand)
	l.transports = []transport.Transport{t}
	l.route = routeAll(l.size, l.rank, t)
	l.arena = t.Arena()
	l.wait(t)
	l.via = "verbs: " + why + "; " + t.About()
	return l, nil
}

func connectTCP(ctx context.Context, l *link, client *control.Client, why string) (*link, error) {
	t, err := listen(client)
	if err != nil {
		return nil, err
	}
	if _, err := l.join(ctx, client, t, ""); err != nil {
		t.Close()
		return nil, err
	}
	l.model = collective.NewModel(collective.Ethernet, collective.Ethernet)
	l.transports = []transport.Transport{t}
	l.route = routeAll(l.size, l.rank, t)
	l.via = "tcp: " + why + "; " + t.About()
	return l, nil
}
