package collective

import "math"

// Pipelines cut a vector into K segments that follow each other through the
// ranks. More segments fill the pipeline sooner, and cost a message each.

const (
	// segmentLeast is the shortest segment worth a message of its own.
	segmentLeast = 4 << 10
	// segmentStart is what a message costs, in bytes that could be sent instead.
	segmentStart = 8 << 10
)

// segments cuts a vector for a pipeline of that depth, which is what the last
// segment waits beside the turns of those before it. The time for K segments of
// S/K bytes is proportional to (depth + K) (start + S/K), least at K =
// sqrt(depth S / start).
func segments(bytes, unit, depth int) split {
	k := int(math.Sqrt(float64(max(depth, 0)) * float64(bytes) / segmentStart))
	return split{bytes, unit, max(1, min(k, bytes/segmentLeast))}
}

// chainSegments cuts a vector for a chain of ranks.
func chainSegments(bytes, unit, ranks int) split { return segments(bytes, unit, ranks-2) }
