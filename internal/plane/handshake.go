package plane

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The handshake. M is the member, R the root; all messages have a fixed size.
//
//	M -> R  hello      magic, version, job, nonce of M, name of M
//	R -> M  challenge  magic, version, nonce of R
//	M -> R  proof      HMAC(key, "member", hello, challenge), digest of the build
//	R -> M  verdict    a verdict; HMAC(key, "root", hello, challenge, verdict)
//
// Each side contributes a nonce, so that nothing can be replayed, and the sides
// have different words, so that nothing can be reflected. R says nothing of the job before the
// proof. The layout of hello and challenge stays the same in all versions.
const (
	magic         = "WEFTPLAN"
	nonceSize     = 32
	digestSize    = 16
	nameSize      = 256 // one byte of length, and the name
	macSize       = sha256.Size
	helloSize     = len(magic) + 4 + digestSize + nonceSize + nameSize
	challengeSize = len(magic) + 4 + nonceSize
	proofSize     = macSize + digestSize
	verdictSize   = 4 + macSize
)

// errStranger is a connection that does not speak this protocol, or not for this job.
var errStranger = errors.New("what it says is not of this job")

// secrets are what a side needs to prove itself.
type secrets struct {
	key    []byte
	digest [digestSize]byte // of the job's name: tells jobs apart, proves nothing
	build  [digestSize]byte
}

func newSecrets(cfg *Config) secrets {
	s := secrets{key: mac(cfg.Secret, []byte("weft plane key 1 "), []byte(cfg.Job))}
	job, build := sha256.Sum256([]byte("weft plane job "+cfg.Job)), sha256.Sum256([]byte(cfg.Build))
	copy(s.digest[:], job[:])
	copy(s.build[:], build[:])
	return s
}

func mac(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// ciphers seal what a side sends and open what it gets.
type ciphers struct{ toRoot, toMember cipher.AEAD }

func (s *secrets) ciphers(hello, challenge []byte) (ciphers, error) {
	derive := func(way string) (cipher.AEAD, error) {
		k, err := hkdf.Key(sha256.New, s.key, append(append([]byte{}, hello...), challenge...), "weft plane to "+way, 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, err
		}
		return cipher.NewGCM(block)
	}
	r, err1 := derive("root")
	m, err2 := derive("member")
	return ciphers{r, m}, errors.Join(err1, err2)
}

// join is the member's side.
func (s *secrets) join(rw io.ReadWriter, name string) (ciphers, error) {
	if len(name) > nameSize-1 {
		return ciphers{}, fmt.Errorf("the name %q is too long", name)
	}
	hello := make([]byte, helloSize)
	copy(hello, magic)
	binary.LittleEndian.PutUint16(hello[len(magic):], Version)
	copy(hello[len(magic)+4:], s.digest[:])
	nonce(hello[len(magic)+4+digestSize:][:nonceSize])
	hello[helloSize-nameSize] = byte(len(name))
	copy(hello[helloSize-nameSize+1:], name)
	if _, err := rw.Write(hello); err != nil {
		return ciphers{}, err
	}
	challenge := make([]byte, challengeSize)
	if _, err := io.ReadFull(rw, challenge); err != nil {
		return ciphers{}, err
	}
	if string(challenge[:len(magic)]) != magic {
		return ciphers{}, fmt.Errorf("what listens there is not weftrun")
	}
	if v := binary.LittleEndian.Uint16(challenge[len(magic):]); v != Version {
		return ciphers{}, fmt.Errorf("weftrun speaks version %d of the protocol, this agent %d; install the same weftrun on all hosts", v, Version)
	}
	proof := append(mac(s.key, []byte("member"), hello, challenge), s.build[:]...)
	if _, err := rw.Write(proof); err != nil {
		return ciphers{}, err
	}
	answer := make([]byte, verdictSize)
	if _, err := io.ReadFull(rw, answer); err != nil {
		return ciphers{}, err
	}
	if !hmac.Equal(answer[4:], mac(s.key, []byte("root"), hello, challenge, answer[:4])) {
		return ciphers{}, fmt.Errorf("what listens there does not know the job's secret")
	}
	if v := Verdict(answer[0]); v != Accepted {
		return ciphers{}, fmt.Errorf("weftrun refused this agent: %v", v)
	}
	return s.ciphers(hello, challenge)
}

// receive is the root's side. Judge is asked about a name that was proved.
func (s *secrets) receive(rw io.ReadWriter, judge func(name string) (member int, v Verdict)) (member int, c ciphers, err error) {
	hello := make([]byte, helloSize)
	if _, err := io.ReadFull(rw, hello[:len(magic)]); err != nil {
		return -1, c, fmt.Errorf("%w: %w", errStranger, err)
	}
	if string(hello[:len(magic)]) != magic { // do not wait for more from a port scanner
		return -1, c, fmt.Errorf("%w: it begins with %q", errStranger, hello[:len(magic)])
	}
	if _, err := io.ReadFull(rw, hello[len(magic):]); err != nil {
		return -1, c, fmt.Errorf("%w: %w", errStranger, err)
	}
	challenge := make([]byte, challengeSize)
	copy(challenge, magic)
	binary.LittleEndian.PutUint16(challenge[len(magic):], Version)
	nonce(challenge[challengeSize-nonceSize:])
	if _, err := rw.Write(challenge); err != nil {
		return -1, c, err
	}
	if v := binary.LittleEndian.Uint16(hello[len(magic):]); v != Version {
		return -1, c, fmt.Errorf("it speaks version %d of the protocol, weftrun %d", v, Version)
	}
	if [digestSize]byte(hello[len(magic)+4:]) != s.digest {
		return -1, c, fmt.Errorf("%w: it is of another one", errStranger)
	}
	proof := make([]byte, proofSize)
	if _, err := io.ReadFull(rw, proof); err != nil {
		return -1, c, fmt.Errorf("%w: %w", errStranger, err)
	}
	length := int(hello[helloSize-nameSize])
	name := string(hello[helloSize-nameSize+1:][:length])
	member, v := -1, WrongSecret
	if hmac.Equal(proof[:macSize], mac(s.key, []byte("member"), hello, challenge)) {
		if [digestSize]byte(proof[macSize:]) != s.build {
			member, v = judgeBuild(judge, name)
		} else {
			member, v = judge(name)
		}
	}
	answer := []byte{byte(v), 0, 0, 0}
	if _, err := rw.Write(append(answer, mac(s.key, []byte("root"), hello, challenge, answer)...)); err != nil {
		return member, c, err
	}
	if v != Accepted {
		return member, c, fmt.Errorf("%q: %v", name, v)
	}
	c, err = s.ciphers(hello, challenge)
	return member, c, err
}

// judgeBuild is the verdict on a member of another build: it keeps its number,
// so that the failure has a host.
func judgeBuild(judge func(string) (int, Verdict), name string) (int, Verdict) {
	member, _ := judge(name)
	return member, WrongBuild
}

func nonce(b []byte) {
	_, _ = rand.Read(b) // never fails; it ends the process if it has to
}
