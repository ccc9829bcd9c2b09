package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// prefixSize is what precedes a frame in the stream: the length of its header
// and payload, u64 little-endian.
const prefixSize = 8

// maxHead bounds a prefix with a header.
const maxHead = prefixSize + wire.MaxSize

// encodeHead writes the prefix and the header of a frame with n bytes of
// payload to b, and returns their length.
func encodeHead(b []byte, h *wire.Header, n int) int {
	hn := h.Encode(b[prefixSize:])
	binary.LittleEndian.PutUint64(b, uint64(hn+n))
	return prefixSize + hn
}

// parseFrame looks at the start of a stream. When need is not zero, it takes a
// buffer of that many bytes to go on, never more than maxHead+maxEager. Else h is
// decoded and the payload of n bytes begins at b[head]; all of it is in b, unless
// the frame is Data.
func parseFrame(b []byte, maxEager int, h *wire.Header) (head int, n uint64, need int, err error) {
	if len(b) < prefixSize+1 {
		return 0, 0, prefixSize + wire.BaseSize, nil
	}
	total := binary.LittleEndian.Uint64(b)
	kind := wire.Kind(b[prefixSize] & 0xf)
	switch {
	case total < wire.BaseSize:
		return 0, 0, 0, fmt.Errorf("frame of %d bytes, a header alone has %d", total, wire.BaseSize)
	case kind == wire.Data && total > wire.MaxSize+wire.MaxBytes:
		return 0, 0, 0, fmt.Errorf("DATA frame of %d bytes, the limit is %d", total, uint64(wire.MaxBytes))
	case kind != wire.Data && total > uint64(wire.MaxSize+maxEager):
		return 0, 0, 0, fmt.Errorf("%v frame of %d bytes, the limit is %d", kind, total, wire.MaxSize+maxEager)
	}
	if kind == wire.Data {
		need = prefixSize + int(min(total, wire.MaxSize))
	} else {
		need = prefixSize + int(total)
	}
	if len(b) < need {
		return 0, 0, need, nil
	}
	hn, err := wire.Decode(b[prefixSize:need], h)
	if err != nil {
		return 0, 0, 0, err
	}
	n = total - uint64(hn)
	if kind != wire.Data && n > uint64(maxEager) {
		return 0, 0, 0, fmt.Errorf("%v frame with %d bytes of payload, the limit is %d", kind, n, maxEager)
	}
	return prefixSize + hn, n, 0, nil
}
