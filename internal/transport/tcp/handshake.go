package tcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// The handshake. D dials, A accepts; all messages have a fixed size, and neither
// side reads more than the next one.
//
//	D -> A  hello      who I am, whom I want, of which job; nonce of D
//	A -> D  challenge  a verdict already, when there is no point in going on; nonce of A
//	D -> A  proof      HMAC(key, "dialer", hello, challenge)
//	A -> D  verdict    a verdict; HMAC(key, "acceptor", hello, challenge, verdict)
//
// key = HMAC(secret, label, job), so that a proof is worth nothing in another job. Each
// side contributes a nonce, so nothing can be replayed; the two sides have
// different words, so nothing can be reflected. A speaks of ranks only after D's
// proof; D believes the verdicts OK and crossed only with A's.
const (
	magic        = "WEFT-TCP"
	protocol     = 1
	nonceSize    = 32
	macSize      = sha256.Size
	digestSize   = 16
	hello0       = len(magic) // offset of the versions
	helloSize    = len(magic) + 4 + 12 + digestSize + nonceSize
	challengeLen = len(magic) + 4 + nonceSize
	verdictSize  = 4 + macSize
)

// verdict is what the accepting side thinks of a connection.
type verdict uint8

const (
	accepted     verdict = iota
	crossed              // I am dialing you: use that one
	wrongVersion         // another build of Weft
	wrongJob             // another job
	wrongRank            // I am not whom you want, or you are nobody
	wrongSecret          // the proof is wrong
	duplicate            // there is a connection with that rank already
	gone                 // that rank was reported down
	numVerdicts
)

func (v verdict) String() string {
	return [...]string{"accepted", "crossed with a connection the other way", "it is of another version of Weft; start all ranks from one build",
		"it belongs to another job", "it is not the rank that was expected there", "it does not know this job's secret",
		"there is a connection with that rank already", "that rank is down"}[min(v, numVerdicts-1)]
}

// identity is what a rank is known by in handshakes.
type identity struct {
	rank, size int
	key        []byte
	digest     [digestSize]byte // of the job's name: tells jobs apart, proves nothing
}

func newIdentity(rank, size int, secret []byte, job string) identity {
	id := identity{rank: rank, size: size, key: mac(secret, []byte("weft tcp key 1 "), []byte(job))}
	sum := sha256.Sum256([]byte("weft tcp job " + job))
	copy(id.digest[:], sum[:])
	return id
}

func mac(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

func nonce(b []byte) {
	_, _ = rand.Read(b) // never fails; it ends the process if it has to
}

// hello makes the dialer's first message, to rank to.
func (id *identity) hello(to int) []byte {
	b := make([]byte, helloSize)
	copy(b, magic)
	b[hello0], b[hello0+1] = protocol, wire.Version
	le := binary.LittleEndian
	le.PutUint32(b[hello0+4:], uint32(id.size))
	le.PutUint32(b[hello0+8:], uint32(id.rank))
	le.PutUint32(b[hello0+12:], uint32(to))
	copy(b[hello0+16:], id.digest[:])
	nonce(b[helloSize-nonceSize:])
	return b
}

// checkMagic reports whether b can be the start of a hello or a challenge.
func checkMagic(b []byte) bool {
	n := min(len(b), len(magic))
	return string(b[:n]) == magic[:n]
}

// readHello judges a hello. from is meaningful for accepted only.
func (id *identity) readHello(b []byte) (from int, v verdict) {
	le := binary.LittleEndian
	size, rank, to := le.Uint32(b[hello0+4:]), le.Uint32(b[hello0+8:]), le.Uint32(b[hello0+12:])
	switch {
	case b[hello0] != protocol || b[hello0+1] != wire.Version || b[hello0+2] != 0 || b[hello0+3] != 0:
		return -1, wrongVersion
	case [digestSize]byte(b[hello0+16:]) != id.digest:
		return -1, wrongJob
	case size != uint32(id.size) || to != uint32(id.rank) || rank >= size || rank == to:
		return -1, wrongRank
	}
	return int(rank), accepted
}

// challenge makes the accepting side's first message.
func (id *identity) challenge(v verdict) []byte {
	b := make([]byte, challengeLen)
	copy(b, magic)
	b[hello0], b[hello0+1], b[hello0+2] = protocol, wire.Version, byte(v)
	nonce(b[challengeLen-nonceSize:])
	return b
}

// readChallenge returns an error when there is no point in a proof.
func (id *identity) readChallenge(b []byte) error {
	switch v := verdict(b[hello0+2]); {
	case b[hello0] != protocol || b[hello0+1] != wire.Version || v == wrongVersion:
		return fmt.Errorf("it speaks protocol %d with frames of version %d, this build %d and %d; start all ranks from one build",
			b[hello0], b[hello0+1], protocol, wire.Version)
	case v == wrongJob:
		return fmt.Errorf("the process there belongs to another job")
	case v == wrongRank:
		return fmt.Errorf("the process there is another rank, or counts another number of ranks than %d", id.size)
	case v != accepted:
		return fmt.Errorf("it answered %d to our hello", v)
	}
	return nil
}

func (id *identity) proof(hello, challenge []byte) []byte {
	return mac(id.key, []byte("dialer"), hello, challenge)
}

func (id *identity) checkProof(hello, challenge, proof []byte) bool {
	return hmac.Equal(proof, id.proof(hello, challenge))
}

func (id *identity) verdict(hello, challenge []byte, v verdict) []byte {
	b := []byte{byte(v), 0, 0, 0}
	return append(b, mac(id.key, []byte("acceptor"), hello, challenge, b)...)
}

// readVerdict returns accepted or crossed, or an error.
func (id *identity) readVerdict(hello, challenge, b []byte) (verdict, error) {
	v := verdict(b[0])
	if v == wrongSecret {
		return v, fmt.Errorf("it refused us, since our secret differs from its own; were all ranks started by one launcher?")
	}
	if !hmac.Equal(b, id.verdict(hello, challenge, v)) {
		return v, fmt.Errorf("it does not know this job's secret; were all ranks started by one launcher?")
	}
	switch v {
	case accepted, crossed:
		return v, nil
	case duplicate:
		return v, fmt.Errorf("it has a connection with rank %d already; do two processes have that rank?", id.rank)
	case gone:
		return v, fmt.Errorf("it counts rank %d as down", id.rank)
	}
	return v, fmt.Errorf("it refused us with code %d", v)
}
