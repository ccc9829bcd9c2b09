package fake

const line = 64 // bytes of a cache line

// movement is the payload of one work request on its way, in packets. Their
// order is a permutation that needs no memory: the last one first, the others by a stride.
type movement struct {
	length, mtu int
	packets     int
	moved       int
	order       order
}

func (m *movement) start(f *Fabric, length, mtu int) {
	m.length, m.mtu, m.moved = length, mtu, 0
	m.packets = (length + mtu - 1) / mtu
	m.order = newOrder(f, m.packets)
}

// some moves a few packets from the spans src, or from the bytes of inline, to dst; and
// says whether all have arrived.
func (m *movement) some(f *Fabric, dst, src []span, inline []byte) (done bool) {
	for range 1 + f.draw(8) {
		if m.moved == m.packets {
			break
		}
		off := m.order.at(m.moved) * m.mtu
		n := min(m.mtu, m.length-off)
		lines := newOrder(f, (n+line-1)/line)
		for i := range lines.n {
			at := off + lines.at(i)*line
			transfer(dst, src, inline, at, min(line, off+n-at))
		}
		m.moved++
	}
	return m.moved == m.packets
}

// all moves everything.
func (m *movement) all(f *Fabric, dst, src []span, inline []byte) {
	for !m.some(f, dst, src, inline) {
	}
}

// transfer copies n bytes that are off bytes from the start of both sides.
func transfer(dst, src []span, inline []byte, off, n int) {
	for n > 0 {
		var from []byte
		if len(inline) > 0 {
			from = inline[off:]
		} else {
			from = tail(src, off)
		}
		k := copy(tail(dst, off), from[:min(n, len(from))])
		off += k
		n -= k
	}
}

// tail is the rest of the span that holds byte off of all.
func tail(spans []span, off int) []byte {
	for i := range spans {
		if off < spans[i].n {
			return spans[i].bytes()[off:]
		}
		off -= spans[i].n
	}
	panic("fake: a message is longer than its segments")
}

// order is a permutation of the numbers below n: n-1 first, then all others.
type order struct{ n, first, stride int }

func newOrder(f *Fabric, n int) order {
	o := order{n: n}
	if rest := n - 1; rest > 1 {
		o.first = f.draw(rest)
		for o.stride = 1 + f.draw(rest); gcd(o.stride, rest) != 1; o.stride = 1 + f.draw(rest) {
		}
	}
	return o
}

func (o *order) at(i int) int {
	if i == 0 || o.n < 2 {
		return o.n - 1
	}
	return (o.first + (i-1)*o.stride) % (o.n - 1)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
