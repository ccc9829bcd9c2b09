package weft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/batch"
	"github.com/weft-hpc/weft/internal/direct"
	"github.com/weft-hpc/weft/internal/transport/shm"
)

// initializeDirect makes the world of a process that weftrun did not start: of one that was
// started together with others, or of one alone.
func initializeDirect(ctx context.Context, cfg *config) (*World, error) {
	sys := direct.ThisProcess(shm.Create)
	sys.Left = batchLeft
	rank, err := direct.Join(ctx, sys)
	if err != nil {
		return nil, err
	}
	if rank == nil {
		if job := batchJob(os.Getenv); job != "" {
			return nil, fmt.Errorf("%w: %s; start the program with weftrun", ErrNotLaunched, job)
		}
		return newSingle(cfg), nil
	}
	w, err := joinJob(ctx, cfg, rank.Client)
	if err != nil {
		return nil, errors.Join(err, rank.Close())
	}
	w.direct = rank
	w.leave = func(ctx context.Context, untold []int) error {
		if err := rank.Client.Leave(ctx, untold); err != nil {
			return err
		}
		return rank.Finish(ctx)
	}
	rank.Client.Watch(w.event)
	return w, nil
}

// batchLeft asks the batch system how long its job may still run.
func batchLeft(ctx context.Context) (time.Duration, bool) {
	src := batch.Asking(ctx)
	job := &batch.Job{System: "Slurm", ID: os.Getenv("SLURM_JOB_ID")}
	if job.ID == "" { // in a step, Slurm's variables tell of the step, and Find would not take them for a job
		var err error
		if job, err = batch.Find(src); err != nil {
			return 0, false // Deadline then says that it is not known
		}
	}
	left := job.TimeLeft(src)
	return left.For, left.Known && !left.Endless
}
