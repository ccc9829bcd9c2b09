//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// pd is a protection domain. Device.mu guards children and closed.
type pd struct {
	dev      *device
	c        *C.struct_ibv_pd
	children rdma.Resources
	closed   closed
}

func (d *device) AllocPD() (rdma.PD, error) {
	if err := d.reserve(rdma.OpAllocPD, &d.count.PDs); err != nil {
		return nil, err
	}
	c, err := C.weft_alloc_pd(d.lib, d.ctx)
	if c == nil {
		d.add(&d.count.PDs, -1)
		return nil, d.fail(rdma.OpAllocPD, 0, errnoOf(err), rdma.Facts{})
	}
	return &pd{dev: d, c: c}, nil
}

// reserve counts an object that is about to be made.
func (d *device) reserve(op rdma.Op, count *int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.start(op); err != nil {
		return err
	}
	*count++
	return nil
}

// reserve counts an object of the domain that is about to be made.
func (p *pd) reserve(op rdma.Op, count, child *int) error {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	if p.closed.Load() {
		return p.dev.refuse(op, 0, rdma.ErrClosed, 0, "the protection domain was closed")
	}
	if err := p.dev.start(op); err != nil {
		return err
	}
	*count++
	*child++
	return nil
}

func (p *pd) release(count, child *int) {
	p.dev.mu.Lock()
	*count--
	*child--
	p.dev.mu.Unlock()
}

func (p *pd) Close() error {
	d := p.dev
	d.mu.Lock()
	err := p.mayClose()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if err := d.failedClosing(rdma.OpClosePD, 0, &p.closed, C.weft_dealloc_pd(d.lib, p.c)); err != nil {
		return err
	}
	d.add(&d.count.PDs, -1)
	return nil
}

func (p *pd) mayClose() error {
	switch d := p.dev; {
	case p.closed.Load() || d.closed.Load():
		return d.refuse(rdma.OpClosePD, 0, rdma.ErrClosed, 0, "closed twice")
	case p.children != rdma.Resources{}:
		return d.refuse(rdma.OpClosePD, 0, rdma.ErrBusy, syscall.EBUSY, "it still has %v", p.children)
	}
	p.closed.Store(true)
	return nil
}

// mr is registered memory.
type mr struct {
	pd         *pd
	c          *C.struct_ibv_mr
	lkey, rkey uint32
	addr       uint64
	length     int
	access     rdma.Access
	closed     closed
}

func (p *pd) RegisterMemory(mem []byte, access rdma.Access) (rdma.MR, error) {
	d := p.dev
	if err := access.Check(); err != nil {
		return nil, rdma.Locate(err, d.info.Name, 0, 0)
	}
	switch {
	case len(mem) == 0:
		return nil, d.refuse(rdma.OpRegisterMemory, 0, rdma.ErrInvalid, syscall.EINVAL, "there is no memory to register: its length is 0")
	case int64(len(mem)) > d.limits.MaxMRBytes:
		return nil, d.refuse(rdma.OpRegisterMemory, 0, rdma.ErrInvalid, syscall.EINVAL, "%d bytes are more than a region's %d", len(mem), d.limits.MaxMRBytes)
	}
	if err := p.reserve(rdma.OpRegisterMemory, &d.count.MRs, &p.children.MRs); err != nil {
		return nil, err
	}
	addr := addressOf(mem)
	var lkey, rkey C.uint32_t
	c, err := C.weft_reg_mr(d.lib, p.c, C.uintptr_t(addr), C.size_t(len(mem)), C.int(access), &lkey, &rkey)
	if c == nil {
		p.release(&d.count.MRs, &p.children.MRs)
		return nil, d.fail(rdma.OpRegisterMemory, 0, errnoOf(err), memlockFacts(int64(len(mem))))
	}
	return &mr{pd: p, c: c, lkey: uint32(lkey), rkey: uint32(rkey), addr: uint64(addr), length: len(mem), access: access}, nil
}

func (m *mr) LKey() uint32        { return m.lkey }
func (m *mr) RKey() uint32        { return m.rkey }
func (m *mr) Addr() uint64        { return m.addr }
func (m *mr) Len() int            { return m.length }
func (m *mr) Access() rdma.Access { return m.access }

func (m *mr) Close() error {
	d := m.pd.dev
	if err := d.closing(rdma.OpDeregisterMemory, &m.closed, nil, ""); err != nil {
		return err
	}
	if err := d.failedClosing(rdma.OpDeregisterMemory, 0, &m.closed, C.weft_dereg_mr(d.lib, m.c)); err != nil {
		return err
	}
	m.pd.release(&d.count.MRs, &m.pd.children.MRs)
	return nil
}

const capIPCLock = 1 << 14

// memlockFacts says how much memory this process may lock and has locked, as far as the kernel tells.
func memlockFacts(bytes int64) rdma.Facts {
	f := rdma.Facts{Bytes: bytes}
	status, err := processStatus("/proc/self/status")
	caps, capErr := strconv.ParseUint(status["CapEff"], 16, 64)
	var limit syscall.Rlimit
	switch {
	case err == nil && capErr == nil && caps&capIPCLock != 0:
		f.Memlock = -1
	case syscall.Getrlimit(rlimitMemlock, &limit) != nil:
	case limit.Cur > 1<<62:
		f.Memlock = -1
	default:
		f.Memlock = int64(limit.Cur)
	}
	var kib int64
	if _, err := fmt.Sscanf(status["VmPin"], "%d kB", &kib); err == nil {
		f.Pinned = kib << 10
	}
	return f
}

const rlimitMemlock = 8

// processStatus reads the lines of a status file of /proc.
func processStatus(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all := make(map[string]string)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), ":"); ok {
			all[k] = strings.TrimSpace(v)
		}
	}
	return all, lines.Err()
}
