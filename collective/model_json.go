package collective

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// ParseModel reads a model in JSON, as weft tune writes it. All fields have to be there.
func ParseModel(b []byte) (*Model, error) {
	type link struct {
		Latency    *float64 `json:"latency_s"`
		Overhead   *float64 `json:"overhead_s"`
		Gap        *float64 `json:"gap_s"`
		PerByte    *float64 `json:"per_byte_s"`
		Rendezvous *int     `json:"rendezvous_bytes"`
	}
	var in struct {
		Inside  link     `json:"inside"`
		Between link     `json:"between"`
		Reduce  *float64 `json:"reduce_per_byte_s"`
		Copy    *float64 `json:"copy_per_byte_s"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, fmt.Errorf("collective: not a model: %w", err)
	}
	var err error
	number := func(field string, p *float64) float64 {
		switch {
		case p == nil:
			err = fmt.Errorf("collective: the model does not say %s", field)
		case !(*p >= 0) || math.IsInf(*p, 0) || *p > 1:
			err = fmt.Errorf("collective: the model says that %s is %g, which is no time in seconds between 0 and 1", field, *p)
		default:
			return *p
		}
		return 0
	}
	read := func(name string, l *link) Link {
		k := Link{number(name+".latency_s", l.Latency), number(name+".overhead_s", l.Overhead), number(name+".gap_s", l.Gap), number(name+".per_byte_s", l.PerByte), 0}
		switch {
		case l.Rendezvous == nil:
			err = fmt.Errorf("collective: the model does not say %s.rendezvous_bytes", name)
		case *l.Rendezvous < 0:
			err = fmt.Errorf("collective: the model says that %s.rendezvous_bytes is %d", name, *l.Rendezvous)
		default:
			k.Rendezvous = *l.Rendezvous
		}
		return k
	}
	m := &Model{read("inside", &in.Inside), read("between", &in.Between), number("reduce_per_byte_s", in.Reduce), number("copy_per_byte_s", in.Copy)}
	if err != nil {
		return nil, err
	}
	return m, nil
}
