package weft

import (
	"context"

	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/sim"
)

// WithFabric makes Local run on such a fabric.
func WithFabric(cfg sim.Config) Option { return func(c *config) { c.fabric = cfg } }

// WithWindows has windows work in one way only: direct, remote or messages.
func WithWindows(way string) Option { return func(c *config) { c.windowVia = way } }

// WithMessages has collectives send messages, also where ranks map each other's memory.
func WithMessages() Option { return func(c *config) { c.noBoards = true } }

// WithNodes says which ranks of Local are on one node, for the algorithms of collectives.
func WithNodes(nodes ...int) Option { return func(c *config) { c.nodes = nodes } }

// QueueDepth is how many operations may be under way to one target.
const QueueDepth = queueDepth

// LocalOver is Local on given transports, rank i's at index i, whose memory is in arenas.
func LocalOver(ctx context.Context, ts []transport.Transport, arenas []*arena.Arena, kill func(rank int), fn func(ctx context.Context, world *Comm) error) error {
	links := make([]*link, len(ts))
	for rank, t := range ts {
		links[rank] = &link{rank: rank, size: len(ts), transports: []transport.Transport{t}, route: routeAll(len(ts), rank, t), arena: arenas[rank]}
	}
	return runLocal(ctx, newConfig(nil), links, kill, fn)
}

// AskBadly sends a request to the server of a window over messages that no rank of this
// library would send.
func AskBadly[T any](ctx context.Context, w *Window[T], target int, b []byte) error {
	win := w.win
	return win.c.w.engine.Call(ctx, progress.Call{Kind: proto.Send, Ctx: win.c.comm.P2P, Peer: int32(target), Tag: tagRequest, Buf: b}).Err
}

// WindowRequest encodes a request.
func WindowRequest(kind, answer uint32, off, n, a, b uint64) []byte {
	buf := make([]byte, requestSize)
	(&request{kind: requestKind(kind), answer: int32(answer), off: off, n: n, a: a, b: b}).encode(buf)
	return buf
}

// TagAnswer is a tag that requests may name for their answers.
const TagAnswer = tagAnswer
