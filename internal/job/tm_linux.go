package job

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/weft-hpc/weft/internal/tm"
)

// Agents that PBS's own daemon starts, asked directly: no process of a tool of PBS stays on the
// first host, and the secret goes with the request. Where it does not work the tools are next.

// tmName is the starter's name, and what chooseStarter asks for instead of a program.
const tmName = "tm"

// keyVar is the variable that an agent finds the secret in, where that comes with its environment.
const keyVar = "WEFT_AGENT_KEY"

// tmThere tells whether PBS has told us how to reach its daemon.
func tmThere() bool { return os.Getenv("PBS_MOMPORT") != "" && os.Getenv("PBS_JOBCOOKIE") != "" }

// spawner starts agents over TM. It owns a goroutine.
type spawner struct {
	conn  *tm.Conn
	nodes []int
	group sync.WaitGroup
}

// openTM connects to PBS's daemon.
func openTM(p *Plan) (*spawner, error) {
	j, err := tm.FromEnv(os.Getenv, p.Batch.System == "Torque")
	if err != nil {
		return nil, err
	}
	conn, err := tm.Dial(context.Background(), j) // which bounds its waits
	if err != nil {
		return nil, err
	}
	s := &spawner{conn: conn, nodes: conn.Nodes()}
	// Some sites edit the node file, and then its lines are not TM's nodes.
	if lines := p.Batch.Slots(); lines != len(s.nodes) {
		return nil, errors.Join(fmt.Errorf("tm: PBS has a job of %d nodes, and %s has %d lines", len(s.nodes), p.Batch.Source, lines), conn.Close())
	}
	return s, nil
}

// spawn has agents started on all sites, without waiting; what becomes of them is put into the mailbox.
func (s *spawner) spawn(sites []*site, agent []string, key []byte, notes *mailbox) error {
	asked := make(map[int]int) // sites by event
	for i, o := range sites {
		event, err := s.conn.Spawn(s.nodes[o.Index], append(slices.Clone(agent), o.Name), []string{keyVar + "=" + hex.EncodeToString(key)})
		if err != nil {
			return err
		}
		asked[event] = i
	}
	s.group.Go(func() { s.listen(sites, asked, notes) })
	return nil
}

func (s *spawner) listen(sites []*site, asked map[int]int, notes *mailbox) {
	running := make(map[int]int)
	for {
		r, err := s.conn.Next()
		if err != nil {
			for _, i := range asked { // if tasks run already, their links tell of their ends
				notes.put(note{far: &farNote{site: i, spawn: err}})
			}
			return
		}
		i, isSpawn := asked[r.Event]
		switch {
		case isSpawn && r.Err == nil:
			delete(asked, r.Event)
			event, err := s.conn.Obit(s.nodes[sites[i].Index], r.Task)
			if err != nil { // its link tells of its end, without a status
				notes.put(note{say: fmt.Sprintf("the MoM will not tell how the agent on host %s ends: %v", sites[i].Name, err)})
				continue
			}
			running[event] = i
		case isSpawn:
			delete(asked, r.Event)
			notes.put(note{far: &farNote{site: i, spawn: r.Err}})
		case r.Err == nil:
			how := fmt.Sprintf("exit status %d", r.Status)
			if r.Status >= 256 {
				sig := syscall.Signal(r.Status - 256)
				how = fmt.Sprintf("signal %d (%v)", sig, sig)
			}
			notes.put(note{far: &farNote{site: running[r.Event], over: how}})
		}
	}
}

func (s *spawner) close() error {
	err := s.conn.Close()
	s.group.Wait()
	return err
}

// fallBack chooses another starter after TM has failed.
func (f *far) fallBack(why error) error {
	if f.plan.Spec.Launcher == tmName {
		return failf(ExitSetup, "--launcher tm: %w", why)
	}
	s, err := chooseStarter("", f.plan.Batch.System, func(p string) bool { return p != tmName && inPath(p) })
	if err != nil {
		return failf(ExitSetup, "%w; and %w", why, err)
	}
	f.plan.starter = s
	f.notes.put(note{say: fmt.Sprintf("%v; agents are started by %s instead", why, s.name)})
	return nil
}

// refused takes a request to start an agent that PBS refused: another starter does it.
func (f *far) refused(i int, why error) {
	if f.began || f.sites[i].state != awaited {
		return
	}
	if f.plan.starter.name == tmName {
		err := f.fallBack(fmt.Errorf("host %s: %w", f.sites[i].Name, why))
		if err == nil {
			err = f.command()
		}
		if err != nil {
			f.fail(err)
			return
		}
	}
	c := f.plan.starter.commands([]Site{f.sites[i].Site}, f.agent)[0]
	c.Site = i
	f.run([]command{c})
}

// over takes the end of an agent's task.
func (f *far) over(i int, how string) {
	if s := f.sites[i]; s.state == awaited && !f.began {
		f.fail(failf(ExitSetup, "no agent on host %s: its task ended with %s; what it said is in the job's output file", s.Name, how))
	}
}

// command makes the command line of an agent, and the file with the key if that needs one.
func (f *far) command() (err error) {
	if f.plan.starter.file {
		if f.file, err = writeKey(f.key); err != nil {
			return failf(ExitSetup, "the secret for agents: %w", err)
		}
	}
	f.agent = f.plan.agentArgs(strings.Join(f.addrs, ","), f.file)
	return nil
}
