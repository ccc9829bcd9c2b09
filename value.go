package weft

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"hash/fnv"
	"reflect"

	"github.com/weft-hpc/weft/internal/proto"
)

// Codec turns values into bytes and back, for SendValue and RecvValue. All
// ranks of a world use the same one.
type Codec interface {
	// Name distinguishes codecs: ranks with different ones get ErrType.
	Name() string
	// Encode appends the encoding of v to dst.
	Encode(dst []byte, v any) ([]byte, error)
	// Decode sets what v points to. It does not keep src.
	Decode(src []byte, v any) error
}

// Gob is the codec of encoding/gob.
type Gob struct{}

// Name returns "gob".
func (Gob) Name() string { return "gob" }

// Encode implements Codec.
func (Gob) Encode(dst []byte, v any) ([]byte, error) {
	b := bytes.NewBuffer(dst)
	err := gob.NewEncoder(b).Encode(v)
	return b.Bytes(), err
}

// Decode implements Codec.
func (Gob) Decode(src []byte, v any) error { return gob.NewDecoder(bytes.NewReader(src)).Decode(v) }

// valueElem is the element type of encoded values: bytes, with a hash of its
// own, so that a value is not received into a []byte by mistake.
func valueElem(c Codec) *elem {
	h := fnv.New32a()
	h.Write([]byte("value:" + c.Name()))
	e := &elem{typ: reflect.TypeFor[byte](), size: 1, hash: max(h.Sum32(), 1)}
	elemNames.LoadOrStore(e.hash, "a value encoded with "+c.Name())
	return e
}

// SendValue sends any value that the world's codec can encode. It is slower
// than Send, which moves memory as it is.
func SendValue[V any](ctx context.Context, c *Comm, v V, dst, tag int) error {
	c.mustBeOpen()
	data, err := c.w.codec.Encode(nil, v)
	if err != nil {
		return c.errorf("SendValue", fmt.Errorf("encoding %T: %w", v, err), "")
	}
	return c.send(ctx, "SendValue", proto.Send, c.w.valueElem, data, dst, tag)
}

// RecvValue receives a value that SendValue sent.
func RecvValue[V any](ctx context.Context, c *Comm, src, tag int) (v V, st Status, err error) {
	if src == NoRank {
		return v, noStatus, nil
	}
	m, err := c.mprobe(ctx, "RecvValue", src, tag)
	if err != nil {
		return v, Status{}, err
	}
	var data []byte
	if m.status.Bytes > maxBytes {
		return v, Status{}, c.errorf("RecvValue", fmt.Errorf("%w: rank %d announces %d bytes", ErrMemory, m.status.Source, m.status.Bytes), "that rank is broken")
	}
	if m.status.Type == c.w.valueElem.hash {
		data = make([]byte, m.status.Bytes)
	}
	st, err = m.receive(ctx, "RecvValue", c.w.valueElem, data)
	if err != nil {
		return v, st, err
	}
	if err := c.w.codec.Decode(data, &v); err != nil {
		return v, st, c.errorf("RecvValue", fmt.Errorf("decoding %T: %w", v, err), "")
	}
	return v, st, nil
}
