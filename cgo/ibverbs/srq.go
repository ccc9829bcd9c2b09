//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// srq is a shared receive queue.
type srq struct {
	pd     *pd
	c      *C.struct_ibv_srq
	id     uint64
	max    int
	users  int // QPs; guarded by device.mu
	closed closed
	recvs  *batch
	mu     sync.Mutex // held over SetLimit and the end
}

func (p *pd) CreateSRQ(opts rdma.SRQOptions) (rdma.SRQ, error) {
	d := p.dev
	facts := memlockFacts(0)
	facts.Wanted = fmt.Sprintf("%d receives, %d segments", opts.MaxWRs, opts.MaxSGEs)
	if opts.MaxWRs < 1 || opts.MaxWRs > d.limits.MaxSRQWRs || opts.MaxSGEs < 0 || opts.MaxSGEs > d.limits.MaxSGEs {
		return nil, d.fail(rdma.OpCreateSRQ, 0, syscall.EINVAL, facts)
	}
	if err := p.reserve(rdma.OpCreateSRQ, &d.count.SRQs, &p.children.SRQs); err != nil {
		return nil, err
	}
	s := &srq{pd: p}
	d.mu.Lock()
	d.lastID++
	s.id = d.lastID
	d.mu.Unlock()
	wrs, sges := C.int(opts.MaxWRs), C.int(max(1, opts.MaxSGEs))
	c, err := C.weft_create_srq(d.lib, p.c, C.uint64_t(s.id), &wrs, &sges)
	if c == nil {
		p.release(&d.count.SRQs, &p.children.SRQs)
		return nil, d.fail(rdma.OpCreateSRQ, 0, errnoOf(err), facts)
	}
	s.c, s.max = c, int(wrs)
	if s.recvs = newBatch(nil, c, true, min(int(sges), maxSGEs), 0); s.recvs == nil {
		C.weft_destroy_srq(d.lib, c)
		p.release(&d.count.SRQs, &p.children.SRQs)
		return nil, d.fail(rdma.OpCreateSRQ, 0, syscall.ENOMEM, rdma.Facts{})
	}
	d.mu.Lock()
	d.srqs[s.id] = s
	d.mu.Unlock()
	return s, nil
}

func (s *srq) MaxWRs() int { return s.max }

func (s *srq) isClosed(op rdma.Op) error {
	return s.pd.dev.refuse(op, 0, rdma.ErrClosed, 0, "the SRQ was closed")
}

func (s *srq) PostRecv(wrs []rdma.RecvWR) (int, error) {
	if !s.closed.enter() {
		return 0, s.isClosed(rdma.OpPostRecv)
	}
	defer s.closed.leave()
	if s.pd.dev.fatal.Load() {
		return 0, s.pd.dev.lost(rdma.OpPostRecv, 0)
	}
	return s.recvs.postRecv(s.pd.dev, 0, s.max, wrs)
}

func (s *srq) SetLimit(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.pd.dev
	if s.closed.Load() {
		return s.isClosed(rdma.OpModifySRQ)
	}
	if err := d.lost(rdma.OpModifySRQ, 0); err != nil {
		return err
	}
	if n < 0 || n > s.max {
		return d.refuse(rdma.OpModifySRQ, 0, rdma.ErrInvalid, syscall.EINVAL, "a limit of %d is not between 0 and the queue's %d", n, s.max)
	}
	if errno := C.weft_limit_srq(d.lib, s.c, C.int(n)); errno != 0 {
		return d.fail(rdma.OpModifySRQ, 0, syscall.Errno(errno), rdma.Facts{})
	}
	return nil
}

func (s *srq) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.pd.dev
	if err := d.closing(rdma.OpCloseSRQ, &s.closed, &s.users, "QPs are"); err != nil {
		return err
	}
	s.closed.wait()
	if err := d.failedClosing(rdma.OpCloseSRQ, 0, &s.closed, C.weft_destroy_srq(d.lib, s.c)); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.srqs, s.id)
	d.mu.Unlock()
	C.weft_free_batch(s.recvs.c)
	s.pd.release(&d.count.SRQs, &s.pd.children.SRQs)
	return nil
}
