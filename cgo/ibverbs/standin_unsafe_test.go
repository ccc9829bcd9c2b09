//go:build linux && cgo

package ibverbs

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// standin is the library of testdata/standin.c and what it shares with the test.
type standin struct {
	file   string
	others []int // threads that were there before
	*standinControl
}

// standinControl is struct control there.
type standinControl struct {
	interrupt, convention, stopAt, lose, fatal atomic.Uint32 // what goes wrong
	objects, posted, notified                  atomic.Uint32 // counts
	slow                                       atomic.Uint32
	_                                          uint32
	calls                                      [31]standinCall
}

type standinCall struct {
	name               [24]byte
	calls, interrupted atomic.Uint32
	fails              atomic.Uint32
	_                  uint32
}

func (c *standinCall) String() string { return strings.TrimRight(string(c.name[:]), "\x00") }

// newStandin makes a library that nobody else tells what to do, of one that was built.
func newStandin(t testing.TB, built string) *standin {
	t.Helper()
	code, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	s := &standin{others: ioThreads(t), file: filepath.Join(t.TempDir(), filepath.Base(built))}
	if err := os.WriteFile(s.file, code, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Library: s.file}).Devices(); err != nil { // this loads it, and it stays loaded
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.file+".control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = int(unsafe.Sizeof(standinControl{}))
	info, err := f.Stat()
	if err != nil || info.Size() != int64(size) {
		t.Fatalf("the control file is of %d bytes in C, of %d in Go, %v", info.Size(), size, err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	s.standinControl = (*standinControl)(unsafe.Pointer(unsafe.SliceData(b)))
	return s
}
