//go:build zmq && cgo && linux

package zmq

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/pebbe/zmq4"
)

// accepted has the connections that ZeroMQ has accepted, by their descriptors: its monitor tells of the beginning and
// the end of each, and a record says on which it came. These two come in no common order, and a descriptor
// may have passed to another connection before the end of the one before is heard of. So what is told here of a conn
// is a suspicion; the root asks ZeroMQ itself whether it is there.
type accepted struct {
	port    int
	peers   map[int]string
	conns   map[int]*conn // that said hello
	failure error         // of the handshake that failed last; the end of its connection comes next
	full    bool          // accepting failed, which was told
}

// bind notes on which descriptor a conn said hello. It returns the one that had it before.
func (a *accepted) bind(fd int, c *conn) (before *conn) {
	before = a.conns[fd]
	if fd >= 0 {
		a.conns[fd] = c
	}
	return before
}

func (a *accepted) peer(fd int) string {
	if p := a.peers[fd]; p != "" {
		return p
	}
	return "an unknown address"
}

// after hears what happened. It returns a conn whose connection may have ended, or why a stranger was
// sent away.
func (a *accepted) after(h happening) (suspect *conn, stranger error) {
	switch h.event {
	case zmq4.EVENT_ACCEPTED:
		a.full = false
		a.peers[h.number] = peerOf(h.number, a.port)
	case zmq4.EVENT_ACCEPT_FAILED:
		if !a.full {
			a.full = true
			return nil, fmt.Errorf("a connection could not be accepted: %w", syscall.Errno(h.number))
		}
	case zmq4.EVENT_HANDSHAKE_FAILED_AUTH, zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
		_, a.failure = connecting.after(h)
	case zmq4.EVENT_DISCONNECTED:
		c, peer, why := a.conns[h.number], a.peer(h.number), a.failure
		a.failure = nil
		delete(a.conns, h.number)
		delete(a.peers, h.number)
		if c != nil {
			return c, nil
		}
		if why == nil {
			_, why = connecting.after(h)
		}
		return nil, fmt.Errorf("a connection from %s was refused: %w", peer, why)
	}
	return nil, nil
}

// peerOf returns the other end of an accepted connection, for messages. The descriptor is
// ZeroMQ's, which may have closed it by now.
func peerOf(fd, port int) string {
	own, err1 := syscall.Getsockname(fd)
	peer, err2 := syscall.Getpeername(fd)
	if errors.Join(err1, err2) != nil || addrPort(own).Port() != uint16(port) {
		return ""
	}
	return addrPort(peer).String()
}

func addrPort(sa syscall.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
