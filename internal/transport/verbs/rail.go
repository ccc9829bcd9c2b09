package verbs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weft-hpc/weft/rdma"
)

// rail is one port of one device, with all that is made on it. Rail 0 carries frames; the
// others only ever see RDMA writes, so their receives have no memory.
type rail struct {
	index  int
	name   string // device:port
	dev    rdma.Device
	info   rdma.DeviceInfo
	limits rdma.Limits
	port   rdma.Port
	gid    rdma.GIDChoice
	pkey   int
	reason string // why this port

	pd      rdma.PD
	channel rdma.CompChannel
	cq      rdma.CQ
	srq     rdma.SRQ
	pool    rdma.MR // of the send buffers

	cqFree int   // completions that nothing posted can need
	dead   error // the device is gone
	down   bool  // the port is
}

// openRails opens the ports that cfg names or rdma.ChoosePort chooses.
func (t *Transport) openRails() error {
	specs := strings.Split(t.cfg.Device, ",")
	if len(specs) > maxRails {
		return fmt.Errorf("verbs: %d rails in %q, at most %d work", len(specs), t.cfg.Device, maxRails)
	}
	all, err := candidates(t.cfg.Provider, specs)
	if err != nil {
		return err
	}
	if clash := rdma.SubnetClash(all); clash != "" && len(specs) == 1 && specs[0] == "" {
		t.notice("verbs: %s", clash)
	}
	for i, spec := range specs {
		if spec == "" && len(specs) > 1 {
			return fmt.Errorf("verbs: %q names a rail without a device", t.cfg.Device)
		}
		choice, reason, err := rdma.ChoosePort(all, spec, t.cfg.NUMA)
		if err != nil {
			return err
		}
		r := &rail{index: i, name: choice.String(), reason: reason}
		for _, other := range t.rails {
			if other.name == r.name {
				return fmt.Errorf("verbs: %q names %s twice", t.cfg.Device, r.name)
			}
		}
		t.rails = append(t.rails, r)
		if err := r.open(t, &choice); err != nil {
			return err
		}
	}
	return nil
}

// candidates lists the ports. Of devices that specs do not name only the name is of interest.
func candidates(p rdma.Provider, specs []string) ([]rdma.Candidate, error) {
	infos, err := p.Devices()
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, s := range specs {
		if device, _, err := rdma.ParseSpec(s); err == nil {
			named[device] = true
		}
	}
	var all []rdma.Candidate
	for _, info := range infos {
		if len(named) > 0 && !named[info.Name] || info.IWARP {
			all = append(all, rdma.Candidate{Device: info})
			continue
		}
		ports, err := portsOf(p, info)
		if err != nil {
			if named[info.Name] {
				return nil, err
			}
			continue // another one may do; with none of them ChoosePort says so
		}
		all = append(all, ports...)
	}
	return all, nil
}

func portsOf(p rdma.Provider, info rdma.DeviceInfo) (all []rdma.Candidate, err error) {
	dev, err := p.Open(info.Name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	for n := 1; n <= dev.Limits().Ports; n++ {
		port, err := dev.QueryPort(n)
		if err != nil {
			return nil, err
		}
		c := rdma.Candidate{Device: info, Port: port}
		if port.LinkLayer != rdma.LinkEthernet && port.State == rdma.PortActive {
			if gids, err := dev.GIDTable(n); err == nil && len(gids) > 0 && gids[0].Err == nil {
				c.Subnet = gids[0].GID.SubnetPrefix()
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// open makes everything of a rail but its memory and its queue pairs.
func (r *rail) open(t *Transport, c *rdma.Candidate) (err error) {
	if r.dev, err = t.cfg.Provider.Open(c.Device.Name); err != nil {
		return err
	}
	r.info, r.limits = r.dev.Info(), r.dev.Limits()
	if r.port, err = r.dev.QueryPort(c.Port.Num); err != nil {
		return err
	}
	gids, err := r.dev.GIDTable(r.port.Num)
	if err != nil {
		return err
	}
	wish := t.cfg.GID
	wish.NoIPv6 = wish.NoIPv6 || noIPv6()
	if r.gid, err = rdma.ChooseGID(r.info.Name, r.port, gids, wish); err != nil {
		return err
	}
	pkeys, err := r.dev.PKeyTable(r.port.Num)
	if err != nil {
		return err
	}
	if r.pkey, err = rdma.ChoosePKey(r.info.Name, r.port, pkeys, 0); err != nil {
		return err
	}
	if r.index == 0 {
		t.tune = defaultTuning(soft(&r.info), t.cfg.Size)
		if t.cfg.tune != nil {
			t.cfg.tune(&t.tune)
		}
	}
	t.tune.fit(&r.limits, &r.port, t.cfg.Size)
	if r.pd, err = r.dev.AllocPD(); err != nil {
		return err
	}
	if r.channel, err = r.dev.CreateCompChannel(); err != nil {
		return err
	}
	if r.cq, err = r.dev.CreateCQ(t.tune.cq, r.channel); err != nil {
		return err
	}
	r.cqFree = r.cq.Cap()
	wrs := t.tune.maxRecvs
	if r.index > 0 {
		wrs = t.tune.exposures
	}
	r.srq, err = r.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: wrs, MaxSGEs: 1})
	return err
}

// closeReceives lets go of what is posted to receive.
func (r *rail) closeReceives() error {
	if r.srq == nil {
		return nil
	}
	if err := r.srq.Close(); err != nil && !gone(err) {
		return err
	}
	return nil
}

// close gives everything else back. The queue pairs are closed already.
func (r *rail) close() error {
	var errs []error
	note := func(err error) {
		if err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	if r.pool != nil {
		note(r.pool.Close())
	}
	if r.cq != nil {
		note(r.cq.Close())
	}
	if r.channel != nil {
		note(r.channel.Close())
	}
	if r.pd != nil {
		note(r.pd.Close())
	}
	if r.dev != nil {
		note(r.dev.Close())
	}
	return errors.Join(errs...)
}

// about describes the rail in a few words.
func (r *rail) about() string {
	s := r.name
	if r.port.LinkLayer == rdma.LinkEthernet {
		s += fmt.Sprintf(" (GID %v)", r.gid.GIDEntry)
	} else {
		s += fmt.Sprintf(" (LID %d)", r.port.LID)
	}
	return fmt.Sprintf("%s, MTU %d: %s", s, r.port.ActiveMTU, r.reason)
}

// info is what a peer needs of a queue pair on this rail.
func (r *rail) hello(qp rdma.QP, psn uint32, reads int) helloRailInfo {
	return helloRailInfo{link: r.port.LinkLayer, port: uint8(r.port.Num), mtu: r.port.ActiveMTU, gidType: r.gid.Type, lid: r.port.LID,
		reads: uint8(min(reads, 255)), qpn: qp.Num(), psn: psn, maxMessage: uint64(r.port.MaxMessage), gid: r.gid.GID}
}
