//go:build zmq && cgo && linux

package zmq

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"

	"github.com/pebbe/zmq4"

	"github.com/weft-hpc/weft/internal/plane"
)

// pair is a CURVE key pair, as ZeroMQ spells keys.
type pair struct{ public, secret string }

// newPair derives the pair of one end of a job. Who does not know the secret knows neither
// key.
func newPair(cfg *plane.Config, end string) (pair, error) {
	seed, err := hkdf.Key(sha256.New, cfg.Secret, []byte(cfg.Job), "weft plane zmq 1 "+end, 32)
	if err != nil {
		return pair{}, err
	}
	k, err := ecdh.X25519().NewPrivateKey(seed)
	if err != nil {
		return pair{}, err
	}
	return pair{zmq4.Z85encode(string(k.PublicKey().Bytes())), zmq4.Z85encode(string(seed))}, nil
}

// pairs are those of both ends.
type pairs struct{ root, member pair }

func newPairs(cfg *plane.Config) (p pairs, err error) {
	if !zmq4.HasCurve() {
		return p, fmt.Errorf("this host's libzmq was built without CURVE; use another one, or --control %s", plane.TCP)
	}
	if p.root, err = newPair(cfg, "root"); err != nil {
		return p, err
	}
	p.member, err = newPair(cfg, "member")
	return p, err
}

// digest stands for a build in a hello.
func digest(build string) [16]byte {
	d := sha256.Sum256([]byte(build))
	return [16]byte(d[:])
}
