package weft

import "github.com/weft-hpc/weft/internal/transport/sim"

// WithFabric makes Local run on such a fabric.
func WithFabric(cfg sim.Config) Option { return func(c *config) { c.fabric = cfg } }

// WithWindows has windows work in one way only: direct, remote or messages.
func WithWindows(way string) Option { return func(c *config) { c.windowVia = way } }

// QueueDepth is how many operations may be under way to one target.
const QueueDepth = queueDepth
