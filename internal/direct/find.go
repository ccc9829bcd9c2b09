package direct

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/weft-hpc/weft/internal/pmi"
)

// varStarted names the rank that has taken its place, by what it had in common with the
// others. What it starts inherits the variables of the batch system, and is no rank.
const varStarted = "WEFT_STARTED"

// find reads this process's place. It is nil when there is none, or it is a place
// for one alone.
func find(ctx context.Context, sys *System) (*place, error) {
	at, err := pmi.Find(sys.Getenv)
	if err != nil {
		return nil, err
	}
	step, err := findStep(sys)
	if at == nil {
		if err != nil || step == nil {
			return nil, err
		}
		return step, sys.Setenv(varStarted, step.about)
	}
	// A manager's word counts more. Slurm gives both.
	p := &place{rank: at.Rank, size: at.Size, about: "started by a process manager (PMI)", oneHost: step != nil && step.oneHost}
	if step != nil {
		p.about = step.about + ", by PMI"
		if err := sys.Setenv(varStarted, step.about); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{pmi.VarFD, pmi.VarRank, pmi.VarSize} {
		if err := sys.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	line, err := sys.line(at.FD)
	if err != nil {
		return nil, fmt.Errorf("%s=%d, but %w; whatever stands between the process manager and the program must keep descriptors open", pmi.VarFD, at.FD, err)
	}
	if p.manager, err = pmi.Open(ctx, line, *at); err != nil {
		return nil, err
	}
	return p, nil
}

// firstSpecialStep is the lowest of the numbers that Slurm gives to steps that it makes itself: the
// batch script, an interactive one.
const firstSpecialStep = 0xfffffff0

// findStep reads the place that a process has in a step of Slurm.
func findStep(sys *System) (*place, error) {
	job, step := sys.Getenv("SLURM_JOB_ID"), sys.Getenv("SLURM_STEP_ID")
	if job == "" || step == "" {
		return nil, nil
	}
	number := func(name string) (int, error) {
		s := sys.Getenv(name)
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%s=%q is not a number, in step %s of Slurm job %s; srun sets it: start the program with srun or weftrun", name, s, step, job)
		}
		return n, nil
	}
	id, err := number("SLURM_STEP_ID")
	if err != nil {
		return nil, err
	}
	about := fmt.Sprintf("step %s of Slurm job %s", step, job)
	if id >= firstSpecialStep || sys.Getenv(varStarted) == about {
		return nil, nil
	}
	p := &place{about: about}
	if p.rank, err = number("SLURM_PROCID"); err != nil {
		return nil, err
	}
	if p.size, err = number("SLURM_STEP_NUM_TASKS"); err != nil {
		return nil, err
	}
	if p.rank >= p.size {
		return nil, fmt.Errorf("SLURM_PROCID=%d of SLURM_STEP_NUM_TASKS=%d, in %s", p.rank, p.size, about)
	}
	if p.size == 1 && sys.Getenv("SLURM_PTY_PORT") != "" {
		return nil, nil // a shell on a terminal, most likely, and not what srun was asked to start
	}
	p.oneHost = sys.Getenv("SLURM_STEP_NUM_NODES") == "1"
	// Requeued, a job has its number again.
	key := sha256.Sum256([]byte(fmt.Sprintf("%s %s %s %s", sys.Getenv("SLURM_CLUSTER_NAME"), job, step, sys.Getenv("SLURM_RESTART_COUNT"))))
	p.file = filepath.Join(sys.Home, fmt.Sprintf(".weft-step-%s.%s-%s", filepath.Base(job), step, hex.EncodeToString(key[:6])))
	return p, nil
}
