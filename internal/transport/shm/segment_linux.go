package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// segment is a mapping of the shared memory. Several transports of one process
// may share it; the last one to release it unmaps.
type segment struct {
	layout
	mem  []byte
	fd   int // for fallocate; -1 when all pages are real
	refs atomic.Int32
}

// Create makes the segment for a host with nlocal ranks, each with an arena of
// arenaBytes (rounded up to 2 MiB). name is for people who look at
// /proc/PID/maps. The launcher passes the file on to each rank and may close it
// then; the segment lives as long as anybody has it open or mapped. Hardly any
// memory is used before ranks use it.
func Create(name string, nlocal int, arenaBytes int64) (*os.File, error) {
	l, err := newLayout(nlocal, arenaBytes)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("weft:"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shm: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd:weft:"+name)
	err = initSegment(fd, &l)
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func initSegment(fd int, l *layout) error {
	if err := unix.Ftruncate(fd, int64(l.size)); err != nil {
		return fmt.Errorf("shm: size of %d bytes (%d ranks with arenas of %d): %w; ask for smaller arenas, or raise the limit on file size (ulimit -f)",
			l.size, l.ranks, l.arena, err)
	}
	if err := reserve(fd, 0, l.commonBytes()); err != nil {
		return err
	}
	if _, err := unix.Pwrite(fd, l.encode(), 0); err != nil {
		return fmt.Errorf("shm: write header: %w", err)
	}
	// Nobody can cut the segment under the ranks that have it mapped.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("shm: seal: %w", err)
	}
	return nil
}

// mapSegment maps the segment in f, which the caller may close afterwards.
func mapSegment(f *os.File) (*segment, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	head := make([]byte, headerLen)
	if n, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("shm: read header: %w", err)
	} else if n < headerLen {
		head = head[:n]
	}
	l, err := decodeLayout(head, info.Size())
	if err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("shm: duplicate the segment's descriptor: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, l.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: map %d bytes (%d ranks with arenas of %d): %w; ask for smaller arenas, or raise the limit on address space (ulimit -v)",
			l.size, l.ranks, l.arena, err), unix.Close(fd))
	}
	// A hint: most hosts do not give huge pages to shared memory, whatever it says.
	_ = unix.Madvise(mem[l.arenas:], unix.MADV_HUGEPAGE)
	s := &segment{layout: l, mem: mem, fd: fd}
	s.refs.Store(1)
	return s, nil
}

// commit makes n bytes at off real.
func (s *segment) commit(off, n int) error {
	if s.fd < 0 {
		return nil
	}
	return reserve(s.fd, off, n)
}

// reserve goes in pieces: a signal, as a profiler sends a hundred times a
// second, makes the kernel undo what the interrupted call has reserved.
func reserve(fd, off, n int) error {
	const piece = 4 << 20
	for end := off + n; off < end; {
		err := unix.Fallocate(fd, 0, int64(off), int64(min(piece, end-off)))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("shm: no memory for %d more bytes of shared memory: %w; the host or the job's memory limit is exhausted, use fewer ranks per host or smaller arrays", end-off, err)
		}
		off += piece
	}
	return nil
}

func (s *segment) release() error {
	if s.refs.Add(-1) > 0 || s.fd < 0 {
		return nil
	}
	err := errors.Join(unix.Munmap(s.mem), unix.Close(s.fd))
	s.fd = -1 // the number is somebody else's soon
	return err
}
