package tcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// A card is what a rank tells the others of where it listens:
//
//	0  'W' 'T'
//	2  version of the card, u8
//	3  number of addresses, u8
//	4  port, u16 little-endian
//	6  for each address: its length (4 or 16), u8, and its bytes
const (
	cardVersion  = 1
	cardHead     = 6
	maxCardAddrs = 8
)

func encodeCard(addrs []netip.AddrPort) []byte {
	b := []byte{'W', 'T', cardVersion, byte(len(addrs))}
	b = binary.LittleEndian.AppendUint16(b, addrs[0].Port())
	for _, a := range addrs {
		raw := a.Addr().AsSlice()
		b = append(b, byte(len(raw)))
		b = append(b, raw...)
	}
	return b
}

// decodeCard returns the addresses to dial, in the order to try them.
func decodeCard(b []byte) ([]netip.AddrPort, error) {
	if len(b) < cardHead || b[0] != 'W' || b[1] != 'T' {
		return nil, fmt.Errorf("not a card: %d bytes %.16x", len(b), b)
	}
	if b[2] != cardVersion {
		return nil, fmt.Errorf("card of version %d, this build reads %d; start all ranks from one build", b[2], cardVersion)
	}
	count, port := int(b[3]), binary.LittleEndian.Uint16(b[4:])
	if count == 0 || count > maxCardAddrs || port == 0 {
		return nil, fmt.Errorf("card with %d addresses and port %d", count, port)
	}
	rest := b[cardHead:]
	addrs := make([]netip.AddrPort, 0, count)
	for range count {
		if len(rest) == 0 || rest[0] != 4 && rest[0] != 16 || len(rest) < 1+int(rest[0]) {
			return nil, fmt.Errorf("card of %d bytes ends within its %d addresses", len(b), count)
		}
		a, _ := netip.AddrFromSlice(rest[1 : 1+rest[0]])
		if a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("card with address %v, which nobody listens at", a)
		}
		addrs = append(addrs, netip.AddrPortFrom(a, port))
		rest = rest[1+rest[0]:]
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("card with %d bytes too many", len(rest))
	}
	return addrs, nil
}
