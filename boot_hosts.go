package weft

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/shm"
)

// connectHosts reaches the ranks of this host over shared memory, and all others
// over TCP.
func connectHosts(ctx context.Context, l *link, client *control.Client) (*link, error) {
	env := client.Env()
	if env.LocalSize() == 1 {
		return connectTCP(ctx, l, client, "ranks are on several hosts, and only one on this")
	}
	if env.Segment == nil {
		return nil, fmt.Errorf("%w: shm: the launcher gave no segment of shared memory; start the job with weftrun of this version", ErrTransport)
	}
	inside, err := shm.Open(env.Segment, shm.Config{Index: env.LocalRank, World: env.LocalRanks, Oversubscribed: env.Oversubscribed})
	if err != nil {
		return nil, fmt.Errorf("%w: shm: %w", ErrTransport, err)
	}
	between, err := listen(client)
	if err != nil {
		inside.Close()
		return nil, err
	}
	cards, err := client.Join(ctx, between.Card())
	if err == nil {
		err = between.SetCards(cards)
	}
	if err != nil {
		between.Close()
		inside.Close()
		return nil, err
	}
	// The engine sleeps in the first, and has a goroutine that sleeps in the other.
	l.transports = []transport.Transport{inside, between}
	l.route = routeAll(l.size, l.rank, between)
	for _, rank := range env.LocalRanks {
		if rank != l.rank {
			l.route[rank] = inside
		}
	}
	l.arena = inside.Arena()
	l.via = "shm inside a host, tcp between hosts; " + between.About()
	return l, nil
}
