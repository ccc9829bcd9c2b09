package job

import (
	"runtime"
	"sync"
)

// A forker is a thread that forks. The kernel kills a rank when the thread that
// forked it ends, so one thread forks all of them and stays until close. Its
// processor affinity is what children inherit.
type forker struct {
	work  chan func() error
	done  chan error
	group sync.WaitGroup
}

func newForker() *forker {
	f := &forker{work: make(chan func() error), done: make(chan error)}
	f.group.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for w := range f.work {
			f.done <- w()
		}
	})
	return f
}

// do has the thread run w, and waits for it. One goroutine at a time may call it.
func (f *forker) do(w func() error) error {
	f.work <- w
	return <-f.done
}

func (f *forker) close() {
	close(f.work)
	f.group.Wait()
}
