package weft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/weft-hpc/weft/internal/proto"
)

// Errors that calls return, wrapped in an [*Error] that says where. Compare
// with errors.Is.
var (
	// ErrTruncated: the message was longer than the receive buffer, which holds
	// its first part. The rest is lost; the next message is not affected.
	ErrTruncated = proto.ErrTruncated
	// ErrType: the message has elements of another layout than the buffer.
	ErrType = proto.ErrType
	// ErrMismatch: ranks called different collectives, or the same one with
	// different arguments.
	ErrMismatch = proto.ErrMismatch
	// ErrRevoked: the communicator was ended by an error on one of its ranks.
	ErrRevoked = proto.ErrRevoked
	// ErrRankFailed: a rank that the operation needs has died.
	ErrRankFailed = proto.ErrPeerLost
	// ErrRankLeft: a rank that the operation needs has ended in good order.
	ErrRankLeft = proto.ErrPeerLeft
	// ErrElemType: the element type cannot be sent as it lies in memory.
	ErrElemType = errors.New("element type cannot be sent")
	// ErrRank: no such rank in the communicator.
	ErrRank = errors.New("rank out of range")
	// ErrTag: a tag is from 0 to MaxTag.
	ErrTag = errors.New("tag out of range")
	// ErrCount: a buffer's length does not fit the operation.
	ErrCount = errors.New("wrong buffer length")
	// ErrRange: a place beyond the end of a window.
	ErrRange = errors.New("beyond the window")
	// ErrOverlap: two buffers share memory but are not the same.
	ErrOverlap = errors.New("buffers overlap in part")
	// ErrConcurrent: two collectives at once on one communicator.
	ErrConcurrent = errors.New("two collectives at once on one communicator")
	// ErrNotLaunched: a batch system's job, but nothing has started ranks there: weftrun, srun.
	ErrNotLaunched = errors.New("in a batch job, but not started by weftrun")
	// ErrArgument: an argument makes no sense, or the call comes at the wrong time.
	ErrArgument = errors.New("bad argument")
	// ErrTransport: a transport that was asked for cannot be used.
	ErrTransport = errors.New("transport cannot be used")
	// ErrMemory: the arena has no room.
	ErrMemory = errors.New("no room in the arena")
	// ErrPending: operations were still in progress.
	ErrPending = errors.New("operations in progress")
	// ErrTooManyComms: all context ids are in use.
	ErrTooManyComms = errors.New("too many communicators")
)

// Error is the error of a call: what failed, where, and what to do about it.
// Fields that do not apply are NoRank, -1, zero or empty.
type Error struct {
	Op       string // the call: Send, Recv, Allreduce
	Comm     string // name of the communicator
	Rank     int    // this rank in it
	Peer     int    // the other rank, AnySource or NoRank
	Tag      int    // AnyTag, or NoRank
	Want     int64  // bytes that the call expected or had room for, or -1
	Got      int64  // bytes that there were, or -1
	Elem     string // the element type
	Hint     string // what to change
	CallSite string // file:line in the user's code
	Err      error

	lost int // rank in the world whose failure is the cause, when it is one
}

// Error returns one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "weft: %s", e.Op)
	if e.Comm != "" {
		fmt.Fprintf(&b, " on %q (rank %d)", e.Comm, e.Rank)
	}
	switch {
	case e.Peer == AnySource:
		b.WriteString(", any source")
	case e.Peer >= 0:
		fmt.Fprintf(&b, ", rank %d", e.Peer)
	}
	switch {
	case e.Tag == AnyTag:
		b.WriteString(", any tag")
	case e.Tag >= 0:
		fmt.Fprintf(&b, ", tag %d", e.Tag)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Want >= 0 && e.Got >= 0 {
		fmt.Fprintf(&b, ": %d bytes where %d were expected", e.Got, e.Want)
	}
	if e.Elem != "" {
		fmt.Fprintf(&b, " (%s)", e.Elem)
	}
	if e.CallSite != "" {
		fmt.Fprintf(&b, ", at %s", e.CallSite)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "; %s", e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// errorf makes an Error of a call on c that names no peer.
func (c *Comm) errorf(op string, err error, hint string, args ...any) *Error {
	return &Error{Op: op, Comm: c.name, Rank: c.rank, Peer: NoRank, Tag: NoRank, Want: -1, Got: -1,
		Err: err, Hint: fmt.Sprintf(hint, args...), CallSite: callSite(), lost: -1}
}

// failure makes the error of a finished point-to-point operation.
func (c *Comm) failure(ctx context.Context, call string, el *elem, peer, tag int, capacity int, st proto.Status, err error) error {
	e := &Error{Op: call, Comm: c.name, Rank: c.rank, Peer: peer, Tag: tag, Want: -1, Got: -1, Err: err, CallSite: callSite(), lost: -1}
	switch {
	case errors.Is(err, ErrTruncated):
		e.Peer, e.Tag = int(st.Source), int(st.Tag)
		e.Want, e.Got = int64(capacity), st.Bytes
		e.Elem = fmt.Sprintf("%d and %d of %v", st.Bytes/int64(el.size), capacity/el.size, el.typ)
		e.Hint = "make the buffer longer, or use RecvAppend"
	case errors.Is(err, ErrType):
		e.Peer, e.Tag = int(st.Source), int(st.Tag)
		e.Elem = fmt.Sprintf("the message holds %s, the buffer %v", typeName(st.Type), el.typ)
		e.Hint = "send and receive the same element type"
	case errors.Is(err, proto.ErrCanceled):
		e.Err = context.Cause(ctx)
		if e.Err == nil {
			e.Err = context.Canceled // by Request.Cancel
		}
		e.Hint = "the operation was withdrawn before it matched"
	case errors.Is(err, ErrRankFailed):
		e.lost = proto.LostRank(err)
		e.Hint = "the job cannot go on without that rank; its own message says why it ended"
	case errors.Is(err, ErrRankLeft):
		e.Hint = "the other rank returned from its function while this one still needed it"
	}
	return e
}

// callSite returns the first caller outside this package.
func callSite() string {
	var pcs [24]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		ours := strings.HasPrefix(f.Function, "github.com/weft-hpc/weft.") || strings.HasPrefix(f.Function, "github.com/weft-hpc/weft/internal/")
		if !ours || strings.HasSuffix(f.File, "_test.go") {
			if f.File == "" {
				return ""
			}
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}
