//go:build linux && cgo

package ibverbs

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
// static void weft_free_string(char *s) { free(s); }
import "C"

import (
	"errors"
	"os"
	"slices"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// Built tells whether this program has what calls libibverbs.
const Built = true

// library is libibverbs, once it is loaded.
type library struct{ c *C.struct_weft_lib }

// load loads the library if that was not done. A failure is not kept: the next call tries again.
func (p *Provider) load() (*C.struct_weft_lib, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lib.c != nil {
		return p.lib.c, nil
	}
	path := C.CString(p.path())
	defer C.weft_free_string(path)
	var text [512]C.char
	e := &rdma.Error{Op: rdma.OpListDevices}
	facts := rdma.Facts{}
	switch C.weft_load(path, &p.lib.c, &text[0], C.size_t(len(text))) {
	case C.WEFT_LOADED:
		return p.lib.c, nil
	case C.WEFT_NOT_BUILT:
		e.Kind, e.What = rdma.ErrUnsupported, "verbs is not built in: infiniband/verbs.h was not there when this program was built"
		e.Hint = "apt-get install libibverbs-dev, or dnf install rdma-core-devel; then go build -a"
	case C.WEFT_NO_LIBRARY:
		facts.Library = C.GoString(&text[0])
	default: // WEFT_NO_SYMBOL
		facts.Feature, facts.Wanted = "this program", C.GoString(&text[0])
	}
	return nil, rdma.Explain(e, facts)
}

// list asks the library for its devices.
func (p *Provider) list(lib *C.struct_weft_lib) ([]rdma.DeviceInfo, error) {
	found := make([]C.struct_weft_device, 16)
	var n C.int
	known := p.sysfs.devices()
	for again := true; again; {
		if errno := C.weft_list(lib, &found[0], C.int(len(found)), &n); errno != 0 {
			return nil, rdma.Explain(&rdma.Error{Op: rdma.OpListDevices, Errno: syscall.Errno(errno)}, rdma.Facts{Sysfs: len(known) > 0, Known: known})
		}
		if again = int(n) > len(found); again { // a card may have hundreds of virtual functions
			found = make([]C.struct_weft_device, n)
		}
	}
	if n == 0 {
		return nil, rdma.Explain(&rdma.Error{Op: rdma.OpListDevices}, rdma.Facts{Sysfs: len(known) > 0, Known: known})
	}
	var all []rdma.DeviceInfo
	for i := range n {
		d := &found[i]
		name := C.GoString(&d.name[0])
		all = append(all, rdma.DeviceInfo{
			Name: name, Provider: Name, Driver: p.sysfs.driver(name), Path: "/dev/infiniband/" + C.GoString(&d.uverbs[0]),
			Firmware: p.sysfs.read(p.sysfs.class(name, "fw_ver")), NodeGUID: uint64(d.guid), NUMANode: p.sysfs.numaNode(name),
			IWARP: d.iwarp != 0, Ports: p.sysfs.ports(name),
		})
	}
	return all, nil
}

// Devices lists the devices of libibverbs.
func (p *Provider) Devices() ([]rdma.DeviceInfo, error) {
	lib, err := p.load()
	if err != nil {
		return nil, err
	}
	return p.list(lib)
}

// Open opens a device.
func (p *Provider) Open(name string) (rdma.Device, error) {
	io, err := p.io()
	if err != nil {
		return nil, rdma.Locate(err, name, 0, 0)
	}
	lib, err := p.load()
	if err != nil {
		return nil, rdma.Locate(err, name, 0, 0)
	}
	all, err := p.list(lib)
	if err != nil {
		if errors.Is(err, rdma.ErrNoDevice) {
			err = rdma.Explain(&rdma.Error{Op: rdma.OpOpenDevice, Kind: rdma.ErrNoDevice}, rdma.Facts{Wanted: name})
		}
		return nil, rdma.Locate(err, name, 0, 0)
	}
	i := slices.IndexFunc(all, func(d rdma.DeviceInfo) bool { return d.Name == name })
	if i < 0 {
		var known []string
		for _, d := range all {
			known = append(known, d.Name)
		}
		return nil, rdma.Explain(&rdma.Error{Op: rdma.OpOpenDevice, Device: name, Kind: rdma.ErrNoDevice}, rdma.Facts{Wanted: name, Known: known})
	}
	return p.open(lib, all[i], io)
}

func (p *Provider) open(lib *C.struct_weft_lib, info rdma.DeviceInfo, io IO) (*device, error) {
	cname := C.CString(info.Name)
	defer C.weft_free_string(cname)
	var l C.struct_weft_limits
	ctx, err := C.weft_open(lib, cname, &l)
	if ctx == nil {
		e := &rdma.Error{Op: rdma.OpOpenDevice, Device: info.Name, Errno: errnoOf(err)}
		refused := e.Errno == syscall.EACCES || e.Errno == syscall.EPERM
		if _, err := os.Stat(info.Path); errors.Is(err, os.ErrNotExist) && !refused {
			e.Kind = rdma.ErrPermission
			e.What = "its file " + info.Path + " is not here"
			e.Hint = "in a container, docker run --device=/dev/infiniband; else modprobe ib_uverbs"
		}
		return nil, rdma.Explain(e, rdma.Facts{Wanted: info.Path})
	}
	if v := C.GoString(&l.firmware[0]); v != "" {
		info.Firmware = v
	}
	info.Ports = int(l.ports)
	d := &device{p: p, lib: lib, ctx: ctx, info: info, mode: io, eventFD: int(C.weft_event_fd(ctx)),
		cqs: make(map[uint64]*cq), qps: make(map[uint64]*qp), srqs: make(map[uint64]*srq), numbers: make(map[uint32]*qp)}
	soft := info.Driver == driverRXE
	d.limits = rdma.Limits{
		Ports: int(l.ports), MaxQPs: int(l.qps), MaxQPWRs: int(l.qp_wrs), MaxSGEs: min(int(l.sges), maxSGEs), MaxCQs: int(l.cqs), MaxCQEs: int(l.cqes),
		MaxSRQs: int(l.srqs), MaxSRQWRs: int(l.srq_wrs), MaxMRs: int(l.mrs), MaxMRBytes: int64(min(uint64(l.mr_bytes), 1<<63-1)),
		MaxReads: int(l.reads), Atomics: l.atomics != 0, MaxRetries: 7, RNRForever: true, Solicited: io == Direct,
	}
	if soft {
		// 7 retries never end there, and RNR retries for ever lock up the kernel.
		d.limits.MaxRetries, d.limits.RNRForever = 6, false
		d.flushAgain = true
	}
	return d, nil
}

// maxSGEs keeps a batch small; no program here has use for more.
const maxSGEs = 64

// errnoOf is the errno that cgo returns as an error.
func errnoOf(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return 0
}
