package batch

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Left is how long a job may still run.
type Left struct {
	Known   bool
	Endless bool          // there is no limit
	For     time.Duration // where Known and not Endless
	From    string        // who said so, or why it could not be told
}

func (l Left) String() string {
	switch {
	case !l.Known:
		return "could not tell: " + l.From
	case l.Endless:
		return "no limit, says " + l.From
	}
	return fmt.Sprintf("%v, says %s", l.For.Round(time.Second), l.From)
}

func couldNot(format string, args ...any) Left { return Left{From: fmt.Sprintf(format, args...)} }

// TimeLeft tells how long the job may still run. Where the environment does not say it,
// the batch system is asked with src.Run, which may take a while.
func (j *Job) TimeLeft(src Source) Left {
	switch j.System {
	case "Slurm":
		return j.slurmLeft(src)
	case "PBS", "Torque":
		return j.pbsLeft(src)
	case "":
		return couldNot("this is not a batch job")
	}
	return couldNot("%s does not say it in a way that weftrun knows", j.System)
}

func (j *Job) slurmLeft(src Source) Left {
	if s := src.Getenv("SLURM_JOB_END_TIME"); s != "" { // from 23.02 on
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return couldNot("SLURM_JOB_END_TIME=%q is not a time", s)
		}
		return Left{Known: true, For: max(time.Unix(n, 0).Sub(src.Now()), 0), From: "SLURM_JOB_END_TIME"}
	}
	if src.Run == nil {
		return couldNot("squeue was not asked")
	}
	out, err := src.Run("squeue", "-h", "-j", j.ID, "-o", "%L")
	if err != nil {
		return couldNot("squeue: %v", err)
	}
	out = strings.TrimSpace(out)
	if out == "UNLIMITED" {
		return Left{Known: true, Endless: true, From: "squeue"}
	}
	d, err := clock(out)
	if err != nil {
		return couldNot("squeue: %v", err)
	}
	return Left{Known: true, For: d, From: "squeue"}
}

// clock reads 5:00, 02:03:04, 1-02:03:04, 30.
func clock(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "-")
	if !ok {
		days, rest = "0", s
	}
	d, err := digits(days)
	bad := fmt.Errorf("%q is not a time such as 5:00 or 1-02:03:04", s)
	if err != nil || d > 10000 {
		return 0, bad
	}
	parts := strings.Split(rest, ":")
	if len(parts) > 3 || ok && len(parts) != 3 {
		return 0, bad
	}
	seconds := uint64(0)
	for _, p := range parts {
		n, err := digits(p)
		if err != nil || n > 1e9 {
			return 0, bad
		}
		seconds = seconds*60 + n
	}
	return time.Duration(d*86400+seconds) * time.Second, nil
}

func (j *Job) pbsLeft(src Source) Left {
	if s := src.Getenv("PBS_WALLTIME"); s != "" && j.System == "Torque" { // what was asked for, in seconds
		n, err := number(s)
		if err != nil {
			return couldNot("PBS_WALLTIME: %v", err)
		}
		began, err := src.Changed(src.Getenv("PBS_NODEFILE"))
		if err != nil {
			return couldNot("PBS_WALLTIME=%s, but when did the job begin? %v", s, err)
		}
		return Left{Known: true, For: max(time.Duration(n)*time.Second-src.Now().Sub(began), 0), From: "PBS_WALLTIME and the age of PBS_NODEFILE"}
	}
	if src.Run == nil {
		return couldNot("qstat was not asked")
	}
	out, err := src.Run("qstat", "-f", j.ID)
	if err != nil {
		return couldNot("qstat: %v", err)
	}
	attrs := attributes(out)
	limit, ok := attrs["Resource_List.walltime"]
	if !ok {
		return Left{Known: true, Endless: true, From: "qstat"}
	}
	whole, err := clock(limit)
	if err != nil {
		return couldNot("qstat: Resource_List.walltime: %v", err)
	}
	if used, err := clock(attrs["resources_used.walltime"]); err == nil {
		return Left{Known: true, For: max(whole-used, 0), From: "qstat"}
	}
	if began, err := time.ParseInLocation(time.ANSIC, attrs["stime"], src.Now().Location()); err == nil {
		return Left{Known: true, For: max(whole-src.Now().Sub(began), 0), From: "qstat"}
	}
	return couldNot("qstat says neither resources_used.walltime nor stime")
}

// attributes reads the output of qstat -f: NAME = VALUE, where lines that begin
// with a tab go on with the one before.
func attributes(text string) map[string]string {
	out := make(map[string]string)
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "\t") && last != "" {
			out[last] += strings.TrimSpace(line)
			continue
		}
		if name, value, ok := strings.Cut(line, " = "); ok {
			last = strings.TrimSpace(name)
			out[last] = strings.TrimSpace(value)
		}
	}
	return out
}
