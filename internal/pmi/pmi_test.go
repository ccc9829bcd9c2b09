package pmi_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/pmi"
	"github.com/weft-hpc/weft/internal/pmi/pmitest"
)

func env(vars ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(vars); i += 2 {
			if vars[i] == name {
				return vars[i+1]
			}
		}
		return ""
	}
}

func TestFind(t *testing.T) {
	p, err := pmi.Find(env("PMI_FD", "6", "PMI_RANK", "2", "PMI_SIZE", "3"))
	if err != nil || p == nil || *p != (pmi.Place{FD: 6, Rank: 2, Size: 3}) {
		t.Errorf("got %+v, %v", p, err)
	}
	p, err = pmi.Find(env("PMI_FD", "6", "PMI_RANK", "2", "PMI_SIZE", "3", "PMI_VERSION", "2", "PMI_JOBID", "7.0"))
	if err != nil || p == nil || *p != (pmi.Place{FD: 6, Rank: 2, Size: 3, Version: 2, Job: "7.0"}) {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err := pmi.Find(env("PMI_RANK", "2", "PMI_SIZE", "3")); p != nil || err != nil {
		t.Errorf("without a descriptor: got %+v, %v", p, err)
	}
	for _, bad := range []struct {
		vars []string
		want string
	}{
		{[]string{"PMI_FD", "6", "PMI_SIZE", "3"}, `PMI_RANK=""`},
		{[]string{"PMI_FD", "6", "PMI_RANK", "0"}, `PMI_SIZE=""`},
		{[]string{"PMI_FD", "x", "PMI_RANK", "0", "PMI_SIZE", "1"}, `PMI_FD="x"`},
		{[]string{"PMI_FD", "6", "PMI_RANK", "-1", "PMI_SIZE", "3"}, `PMI_RANK="-1"`},
		{[]string{"PMI_FD", "6", "PMI_RANK", "3", "PMI_SIZE", "3"}, "PMI_RANK=3 of PMI_SIZE=3"},
		{[]string{"PMI_FD", "6", "PMI_RANK", "0", "PMI_SIZE", "3", "PMI_VERSION", "x"}, `PMI_VERSION="x"`},
		{[]string{"PMI_PORT", "n1:999", "PMI_ID", "0"}, "PMI_PORT=n1:999"},
	} {
		if _, err := pmi.Find(env(bad.vars...)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v: got error %v, want one with %s", bad.vars, err, bad.want)
		}
	}
}

// Share carries what rank 0 brings, of lengths around that of a piece.
func TestShare(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 129, 1000, 64 << 10} {
		testShare(t, n, 1)
		testShare(t, n, 2)
	}
}

func testShare(t *testing.T, n, version int) {
	const size = 3
	for _, asked := range []int{0, version} { // else the manager says so
		m := pmitest.New(t, size, version)
		secret := bytes.Repeat([]byte{0xa5, 0, 32, 10}, n/4+1)[:n]
		var group sync.WaitGroup
		for rank := range size {
			line := m.Line(t)
			group.Go(func() {
				c, err := pmi.Open(t.Context(), line, pmi.Place{Rank: rank, Size: size, Version: asked, Job: "7.0"})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if c.Space() != "kvs_test" {
					t.Errorf("space %q", c.Space())
				}
				var mine []byte
				if rank == 0 {
					mine = secret
				}
				got, err := c.Share(t.Context(), "x", mine)
				if err != nil || !bytes.Equal(got, secret) {
					t.Errorf("rank %d, %d bytes: got %d bytes, %v", rank, n, len(got), err)
				}
				if err := c.Finalize(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if m.Finalized() != size {
			t.Errorf("version %d: %d of %d ranks finalized", version, m.Finalized(), size)
		}
	}
}

func TestTooMuchToShare(t *testing.T) {
	c, err := pmi.Open(t.Context(), pmitest.New(t, 1, 1).Line(t), pmi.Place{Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Share(t.Context(), "x", make([]byte, 64<<10+1)); err == nil || !strings.Contains(err.Error(), "limit is 65536") {
		t.Errorf("got %v", err)
	}
}

// A rank that waits for others who never come can be cancelled.
func TestShareCancelled(t *testing.T) {
	c, err := pmi.Open(t.Context(), pmitest.New(t, 2, 1).Line(t), pmi.Place{Rank: 1, Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Share(ctx, "x", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
}

// manager answers each line with the next of some answers, and hangs up after the last.
func manager(t *testing.T, answers ...string) *os.File {
	t.Helper()
	ours, theirs, err := control.Pair()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer ours.Close()
		for _, a := range answers {
			if _, err := ours.Read(make([]byte, 4096)); err != nil {
				return
			}
			if _, err := ours.WriteString(a); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { theirs.Close(); <-done })
	return theirs
}

func TestBadManagers(t *testing.T) {
	const two = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n"
	const hello, maxes = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n", "cmd=maxes kvsname_max=9 keylen_max=9 vallen_max=99\n"
	for _, m := range []struct {
		answers []string
		want    string
	}{
		{nil, "init: "},
		{[]string{"hello\n"}, `"hello" in "hello\n" is not name=value`},
		{[]string{"cmd=response_to_init rc=-1 msg=go away\n"}, "refused init: rc=-1 go away"},
		{[]string{"cmd=response_to_init pmi_version=3 rc=0\n"}, `version "3", where 1 was asked for`},
		{[]string{"cmd=response_to_init pmi_version=2 rc=-1\n", "cmd=response_to_init pmi_version=1 rc=0\n"}, `version "1", where 2 was asked for`},
		{[]string{two, two, "    13cmd=fullinit;"}, `said "cmd=fullinit;" where fullinit-response was due`},
		{[]string{two, two, "  many"}, `"  many" is not the length of a frame`},
		{[]string{two, two, "999999"}, `"999999" is not the length of a frame`},
		{[]string{two, two, "    90cmd=fullinit-response;"}, "fullinit: unexpected EOF"},
		{[]string{two, two, "    47cmd=fullinit-response;rc=14;errmsg=no such job;"}, "refused fullinit: rc=14 no such job"},
		{[]string{two, two, "    27cmd=fullinit-response;rc=0;", "    30cmd=job-getid-response;jobid=;"}, "names no space"},
		{[]string{"cmd=maxes\n"}, "where response_to_init was due"},
		{[]string{hello, "cmd=maxes vallen_max=many\n"}, `"many" bytes`},
		{[]string{hello, maxes, "cmd=my_kvsname kvsname=\n"}, "names no space"},
		{[]string{hello, maxes, strings.Repeat("x", 70<<10)}, "buffer full"},
		{[]string{hello, maxes, "cmd=my_kvsname"}, "get_my_kvsname: EOF"},
	} {
		c, err := pmi.Open(t.Context(), manager(t, m.answers...), pmi.Place{Size: 1})
		if c != nil || err == nil || !strings.Contains(err.Error(), m.want) {
			t.Errorf("%q: got error %v, want one with %q", m.answers, err, m.want)
		}
	}
}
