package direct

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// segment returns this rank's descriptor of its host's shared memory: the first rank there
// makes it, and hands it to the others. It is nil for a rank that is alone on its host, unless that
// is all there is.
//
// It goes over a socket without a file, whose name follows from the secret. Both ends ask the
// kernel whose process the other is.
func (r *Rank) segment(ctx context.Context, inv *invitation, lay *layout) (*os.File, error) {
	if len(lay.Local) < 2 && r.place.size > 1 {
		return nil, nil
	}
	first := lay.Local[0]
	m := hmac.New(sha256.New, inv.Secret)
	fmt.Fprintf(m, "weft segment of rank %d", first)
	name := "@weft-" + hex.EncodeToString(m.Sum(nil)[:16])
	if r.place.rank != first {
		f, err := fetch(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("shared memory from rank %d: %w", first, err)
		}
		return f, nil
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	f, err := r.sys.Segment(inv.Job, len(lay.Local), lay.Arena)
	if err != nil {
		return nil, errors.Join(err, ln.Close()) // the others hear of it when this rank is lost
	}
	dup, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shared memory: %w", err), f.Close(), ln.Close())
	}
	var group sync.WaitGroup
	group.Go(func() {
		defer unix.Close(dup)
		defer ln.Close()
		for left := len(lay.Local) - 1; left > 0; {
			c, err := ln.AcceptUnix()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					r.sys.Notice(fmt.Sprintf("shared memory: %v; ranks of this host that have not got it yet wait in vain", err))
				}
				return
			}
			if err := hand(c, dup); err != nil {
				r.sys.Notice("shared memory: " + err.Error())
			} else {
				left--
			}
		}
	})
	r.serve = func() error {
		ln.Close() // perhaps closed
		group.Wait()
		return nil
	}
	return f, nil
}

// hand sends a descriptor to a process of this user.
func hand(c *net.UnixConn, fd int) error {
	defer c.Close()
	if err := ours(c); err != nil {
		return err
	}
	_, _, err := c.WriteMsgUnix([]byte{1}, unix.UnixRights(fd), nil)
	return err
}

// fetch gets the descriptor, as soon as somebody hands it out.
func fetch(ctx context.Context, name string) (*os.File, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
		if err == nil {
			return take(ctx, c)
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

func take(ctx context.Context, c *net.UnixConn) (*os.File, error) {
	defer c.Close()
	if err := ours(c); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 {
		return nil, errors.New("no descriptor came")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "segment"), nil
}

// ours makes sure that the other end is a process of this user.
func ours(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, inner); err != nil {
		return err
	}
	if int(cred.Uid) != os.Geteuid() {
		return errors.New("a process of user " + strconv.Itoa(int(cred.Uid)) + " is at the other end")
	}
	return nil
}
