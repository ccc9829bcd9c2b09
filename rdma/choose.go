package rdma

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ParseSpec splits "device" or "device:port". Port 0 stands for any.
func ParseSpec(spec string) (device string, port int, err error) {
	device, p, found := strings.Cut(spec, ":")
	if found {
		if port, err = strconv.Atoi(p); err != nil || port < 1 {
			return "", 0, invalid(OpChoosePort, fmt.Sprintf("%q: %q is not the number of a port", spec, p), "write DEVICE or DEVICE:PORT, as in mlx5_0:1")
		}
	}
	if device == "" {
		return "", 0, invalid(OpChoosePort, fmt.Sprintf("%q names no device", spec), "write DEVICE or DEVICE:PORT, as in mlx5_0:1")
	}
	return device, port, nil
}

// Candidate is a port that may be chosen.
type Candidate struct {
	Device DeviceInfo
	Port   Port
	Subnet uint64 // of InfiniBand: SubnetPrefix of the port's GID; 0 if not known
}

func (c Candidate) String() string { return fmt.Sprintf("%s:%d", c.Device.Name, c.Port.Num) }

// ChoosePort chooses among the ports of a host, for a process on NUMA node numa
// (-1: not known): the one that spec names, if it is not empty; otherwise an
// active port, near rather than far, fast rather than slow, and the first by
// name. reason says why in words.
func ChoosePort(all []Candidate, spec string, numa int) (choice Candidate, reason string, err error) {
	if spec != "" {
		return choosePortBySpec(all, spec)
	}
	var usable []Candidate
	var rejected []string
	for _, c := range all {
		switch {
		case c.Device.IWARP:
			rejected = append(rejected, c.String()+" is iWARP")
		case c.Port.State != PortActive:
			rejected = append(rejected, fmt.Sprintf("%v is %v", c, c.Port.State))
		default:
			usable = append(usable, c)
		}
	}
	if len(usable) == 0 {
		if len(all) == 0 {
			return choice, "", Explain(&Error{Op: OpListDevices, Kind: ErrNoDevice}, Facts{})
		}
		return choice, "", &Error{Op: OpChoosePort, Kind: ErrPortDown, What: "no port is usable: " + strings.Join(rejected, ", "),
			Hint: "weft info shows the ports; on Ethernet: ip link set DEV up"}
	}
	near := func(c Candidate) int {
		if numa >= 0 && c.Device.NUMANode == numa {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(usable, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(near(a), near(b)), cmp.Compare(b.Port.Rate, a.Port.Rate),
			cmp.Compare(a.Device.Name, b.Device.Name), cmp.Compare(a.Port.Num, b.Port.Num))
	})
	choice = usable[0]
	if len(usable) == 1 {
		return choice, "the only active port", nil
	}
	second := usable[1]
	switch {
	case near(choice) != near(second):
		reason = fmt.Sprintf("the fastest on NUMA node %d", numa)
	case choice.Port.Rate != second.Port.Rate:
		reason = fmt.Sprintf("the fastest (%g Gbit/s)", choice.Port.Rate)
	default:
		reason = "the first by name of equally good ones"
	}
	return choice, fmt.Sprintf("%s of %d active ports", reason, len(usable)), nil
}

// SubnetClash says in words that several active InfiniBand ports have the default subnet
// prefix, and is empty if they do not. If their fabrics are separate, ends
// that take each other for neighbours hang; if they are one, all is well.
func SubnetClash(all []Candidate) string {
	var ports []string
	for _, c := range all {
		if c.Port.LinkLayer == LinkInfiniBand && c.Port.State == PortActive && c.Subnet == DefaultSubnetPrefix {
			ports = append(ports, c.String())
		}
	}
	if len(ports) < 2 {
		return ""
	}
	return fmt.Sprintf("ports %s all have the default subnet prefix fe80::; if they are on separate fabrics, "+
		"give each its own with the subnet_prefix of opensm", strings.Join(ports, ", "))
}

func choosePortBySpec(all []Candidate, spec string) (Candidate, string, error) {
	device, port, err := ParseSpec(spec)
	if err != nil {
		return Candidate{}, "", err
	}
	var names []string
	var found []Candidate
	for _, c := range all {
		if !slices.Contains(names, c.Device.Name) {
			names = append(names, c.Device.Name)
		}
		if c.Device.Name == device && (port == 0 || port == c.Port.Num) {
			found = append(found, c)
		}
	}
	switch {
	case !slices.Contains(names, device):
		return Candidate{}, "", Explain(&Error{Op: OpOpenDevice, Kind: ErrNoDevice}, Facts{Wanted: device, Known: names})
	case len(found) == 0:
		return Candidate{}, "", Locate(invalid(OpChoosePort, fmt.Sprintf("it has no port %d", port), "weft info lists the ports"), device, 0, 0)
	}
	// Of a device without a port number, an active port if there is one.
	i := max(0, slices.IndexFunc(found, func(c Candidate) bool { return c.Port.State == PortActive }))
	c := found[i]
	if c.Device.IWARP {
		return Candidate{}, "", &Error{Op: OpChoosePort, Device: device, Kind: ErrUnsupported,
			What: "it is an iWARP device: these need rdma_cm, which is not supported", Hint: "choose an InfiniBand or RoCE device: weft info"}
	}
	if err := c.Port.CheckActive(device, ""); err != nil {
		return Candidate{}, "", err
	}
	return c, "asked for as " + spec, nil
}

// CheckActive says why the port of a device cannot be used. netdev is its
// network interface, if known.
func (p *Port) CheckActive(device, netdev string) error {
	if p.State == PortActive && (p.LinkLayer == LinkEthernet || p.LID != 0 || p.GRHRequired) {
		return nil
	}
	return Explain(&Error{Op: OpChoosePort, Device: device, Port: p.Num, Kind: ErrPortDown},
		Facts{State: p.State, LID: p.LID, Link: p.LinkLayer, NetDev: netdev})
}

// GIDWish narrows the choice of a GID. The zero value wishes nothing.
type GIDWish struct {
	Index  *int         // exactly this entry
	NetDev string       // of this interface, if it has a usable entry
	Subnet netip.Prefix // in this network, if there is a usable entry: the peers are there
	NoIPv6 bool         // IPv6 is off on this host: its addresses are of no use
}

// GIDChoice is what ChooseGID found.
type GIDChoice struct {
	GIDEntry
	Reason   string   // why this one
	Rejected []string // every other entry, and why not
}

// ChooseGID chooses the address of a port. On Ethernet that is, best first,
// RoCE v2 with an IPv4 address, with a global IPv6 address, with a link-local
// one, then the same for RoCE v1; on InfiniBand the first entry that is not
// empty. Index 0 is no default: on Ethernet it is a link-local address.
func ChooseGID(device string, port Port, entries []GIDEntry, wish GIDWish) (GIDChoice, error) {
	if wish.Index != nil {
		return chooseGIDByIndex(device, port, entries, *wish.Index)
	}
	type ranked struct {
		GIDEntry
		rank int
		why  string
	}
	var usable []ranked
	choice := GIDChoice{}
	for _, e := range entries {
		rank, why := rankGID(e, port.LinkLayer, wish.NoIPv6)
		if rank < 0 {
			choice.Rejected = append(choice.Rejected, fmt.Sprintf("%v: %s", e, why))
			continue
		}
		// A wish outranks the type, the subnet outranks the interface.
		if wish.Subnet.IsValid() && wish.Subnet.Contains(e.GID.Addr()) {
			rank, why = rank-200, why+", in the peers' network "+wish.Subnet.String()
		}
		if wish.NetDev != "" && wish.NetDev == e.NetDev {
			rank, why = rank-100, why+", on the interface asked for"
		}
		usable = append(usable, ranked{e, rank, why})
	}
	if len(usable) == 0 {
		return choice, noGID(device, port, entries, "")
	}
	slices.SortStableFunc(usable, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Index, b.Index)) })
	choice.GIDEntry, choice.Reason = usable[0].GIDEntry, usable[0].why
	for _, u := range usable[1:] {
		choice.Rejected = append(choice.Rejected, fmt.Sprintf("%v: %s, not better than index %d", u.GIDEntry, u.why, choice.Index))
	}
	return choice, nil
}

// rankGID says how good an entry is, lower is better, and below 0 useless.
func rankGID(e GIDEntry, link LinkLayer, noIPv6 bool) (rank int, why string) {
	a := netip.AddrFrom16(e.GID)
	switch {
	case e.Err != nil:
		return -1, "kernel or device refuses it"
	case e.GID.IsZero():
		return -1, "empty"
	case link != LinkEthernet && e.Type == GIDInfiniBand:
		return 1, "InfiniBand address"
	case link != LinkEthernet:
		return -1, "not an InfiniBand address"
	case e.Type != GIDRoCEv1 && e.Type != GIDRoCEv2:
		return -1, "not a RoCE address"
	case noIPv6 && !a.Is4In6():
		return -1, "IPv6 is off on this host"
	}
	switch {
	case a.Is4In6():
		rank, why = 1, "IPv4 address"
	case !a.IsLinkLocalUnicast():
		rank, why = 2, "global IPv6 address"
	default:
		rank, why = 3, "link-local IPv6 address"
	}
	if e.Type == GIDRoCEv1 {
		rank += 3
	}
	return rank, e.Type.String() + " with " + why
}

func chooseGIDByIndex(device string, port Port, entries []GIDEntry, index int) (GIDChoice, error) {
	choice := GIDChoice{}
	found := false
	for _, e := range entries {
		rank, why := rankGID(e, port.LinkLayer, false)
		if e.Index == index && rank >= 0 {
			choice.GIDEntry, choice.Reason, found = e, fmt.Sprintf("asked for as index %d; %s", index, why), true
			continue
		}
		choice.Rejected = append(choice.Rejected, e.String()+": not the index asked for")
	}
	if !found {
		return GIDChoice{}, noGID(device, port, entries, strconv.Itoa(index))
	}
	return choice, nil
}

func noGID(device string, port Port, entries []GIDEntry, wanted string) error {
	f := Facts{Wanted: wanted, Known: []string{"no entry"}}
	if len(entries) > 0 {
		f.Known = nil
	}
	for _, e := range entries {
		f.Known = append(f.Known, e.String())
		f.NetDev = firstOf(f.NetDev, e.NetDev)
	}
	return Explain(&Error{Op: OpChooseGID, Device: device, Port: port.Num, Kind: ErrNoGID}, f)
}

// ChoosePKey returns the index of a partition key in a port's table. want
// is the key, with or without its highest bit, which says full member; 0 takes the first full member
// on InfiniBand and index 0 on Ethernet, which has no partitions.
func ChoosePKey(device string, port Port, table []uint16, want uint16) (index int, err error) {
	const member = 0x8000
	best := -1
	for i, key := range table {
		switch {
		case key&^member == 0:
		case want == 0 && port.LinkLayer == LinkEthernet && i == 0:
			return 0, nil
		case want == 0 && key&member != 0, want != 0 && key == want|member:
			return i, nil
		case want != 0 && want&member == 0 && key == want && best < 0:
			best = i // a limited member, which may talk to full ones
		}
	}
	if best >= 0 {
		return best, nil
	}
	f := Facts{Wanted: fmt.Sprintf("0x%04x", want)}
	if want == 0 {
		f.Wanted = "of a full member"
	}
	for _, key := range table {
		f.Known = append(f.Known, fmt.Sprintf("0x%04x", key))
	}
	return 0, Explain(&Error{Op: OpChoosePKey, Device: device, Port: port.Num, Kind: ErrNoPKey}, f)
}

// Nearest returns the one of known that was probably meant, or "" if none is near.
func Nearest(wanted string, known []string) string {
	best, distance := "", len(wanted)/2+1
	for _, k := range known {
		if d := editDistance(strings.ToLower(wanted), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// editDistance is the number of bytes to insert, delete or change.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
