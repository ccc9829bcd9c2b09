package batch

import (
	"fmt"
	"strings"
)

// pbs reads PBS_NODEFILE, of which each line is a slot. A host may come again
// after others.
func (j *Job) pbs(src Source) error {
	path := src.Getenv("PBS_NODEFILE")
	if path == "" {
		return fmt.Errorf("PBS_NODEFILE is not set; it is there in the job script alone, not in tasks that it starts on other hosts")
	}
	j.Source = "PBS_NODEFILE " + path
	if err := fileLines(src, path, func(index int, line string) error { return j.add(line, 1, index) }); err != nil {
		return err
	}
	if len(j.Hosts) == 0 {
		return fmt.Errorf("%s is empty", path)
	}
	if n, err := number(src.Getenv("NCPUS")); err == nil && j.System == "PBS" && n > j.Hosts[0].Slots {
		j.Notes = append(j.Notes, fmt.Sprintf("the job has %d processors and %d slots on host %s: ask for mpiprocs=%d in the select statement if each is to take a rank",
			n, j.Hosts[0].Slots, j.Hosts[0].Name, n))
	}
	return nil
}

// slurm reads the node list and the tasks per node that belongs to it.
func (j *Job) slurm(src Source) error {
	if groups := src.Getenv("SLURM_HET_SIZE"); groups != "" {
		n, err := number(groups)
		if err != nil {
			return fmt.Errorf("SLURM_HET_SIZE: %w", err)
		}
		for g := range n {
			if err := j.slurmGroup(src, fmt.Sprintf("_HET_GROUP_%d", g)); err != nil {
				return err
			}
		}
		return nil
	}
	return j.slurmGroup(src, "")
}

// slurmGroup reads one group of a heterogeneous job, or all of an ordinary one.
func (j *Job) slurmGroup(src Source, suffix string) error {
	nodes := "SLURM_JOB_NODELIST" + suffix
	list := src.Getenv(nodes)
	if list == "" {
		nodes = "SLURM_NODELIST" + suffix
		list = src.Getenv(nodes)
	}
	if list == "" {
		return fmt.Errorf("SLURM_JOB_NODELIST%s is not set", suffix)
	}
	j.Source = nodes + "=" + list
	names, err := Expand(list)
	if err != nil {
		return fmt.Errorf("%s: %w", nodes, err)
	}
	cpus, err := perNode(src, "SLURM_JOB_CPUS_PER_NODE"+suffix, len(names))
	if err != nil {
		return err
	}
	slots, err := perNode(src, "SLURM_TASKS_PER_NODE"+suffix, len(names))
	if err != nil {
		return err
	}
	// Inside a step the tasks are the step's, and those of the job are gone.
	if step := src.Getenv("SLURM_STEP_TASKS_PER_NODE"); suffix == "" && step != "" && step == src.Getenv("SLURM_TASKS_PER_NODE") && src.Getenv("SLURM_STEP_NUM_TASKS") == "1" && cpus != nil {
		perTask := 1
		if s := src.Getenv("SLURM_CPUS_PER_TASK"); s != "" {
			if perTask, err = number(s); err != nil {
				return fmt.Errorf("SLURM_CPUS_PER_TASK: %w", err)
			}
		}
		slots = make([]int, len(cpus))
		for i, n := range cpus {
			slots[i] = max(n/perTask, 1)
		}
		j.Notes = append(j.Notes, "weftrun runs in a step of one task, so slots are counted from SLURM_JOB_CPUS_PER_NODE")
	}
	if slots == nil {
		return fmt.Errorf("SLURM_TASKS_PER_NODE%s is not set", suffix)
	}
	for i, name := range names {
		at := len(j.Hosts)
		if err := j.add(name, slots[i], at); err != nil {
			return fmt.Errorf("%s=%q: %w", nodes, list, err)
		}
		if cpus != nil && len(j.Hosts) > at {
			j.Hosts[at].CPUs = cpus[i]
		}
	}
	return nil
}

// perNode reads a variable such as 4(x2),1 that has a number for each of n
// nodes. It returns nil when the variable is not set. More numbers than nodes are
// legal: Slurm writes them when more tasks than nodes were asked for by mistake.
func perNode(src Source, name string, n int) ([]int, error) {
	text := src.Getenv(name)
	if text == "" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		count, repeat, ok := strings.Cut(strings.TrimSpace(part), "(x")
		times := 1
		v, err := number(count)
		if ok && err == nil {
			inner, closed := strings.CutSuffix(repeat, ")")
			if times, err = number(inner); !closed {
				err = fmt.Errorf("a ) is missing")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s=%q: %q is not understood: %w", name, text, part, err)
		}
		for range min(times, n) {
			out = append(out, v)
		}
	}
	if len(out) < n {
		return nil, fmt.Errorf("%s=%q has numbers for %d nodes, and the job has %d", name, text, len(out), n)
	}
	return out[:n], nil
}

// gridEngine reads PE_HOSTFILE: host, slots, queue instance and processors in
// each line. A host has one line for each queue instance.
func (j *Job) gridEngine(src Source) error {
	path := src.Getenv("PE_HOSTFILE")
	j.Source = "PE_HOSTFILE " + path
	err := fileLines(src, path, func(index int, line string) error {
		f := strings.Fields(line)
		if len(f) < 2 || len(f) > 4 {
			return fmt.Errorf("%q is not a host, its slots, a queue and processors", line)
		}
		slots, err := number(f[1])
		if err != nil {
			return fmt.Errorf("%q: slots: %w", line, err)
		}
		return j.add(f[0], slots, index)
	})
	if err == nil && len(j.Hosts) == 0 {
		err = fmt.Errorf("%s is empty", path)
	}
	return err
}

// lsf reads LSB_MCPU_HOSTS, or one of the lists that have a name for each slot.
// The rank file comes after it, because it may begin with the host that the job was
// launched from, where no rank may run.
func (j *Job) lsf(src Source) error {
	if text := src.Getenv("LSB_MCPU_HOSTS"); text != "" {
		j.Source = "LSB_MCPU_HOSTS=" + text
		f := strings.Fields(text)
		if len(f)%2 != 0 {
			return fmt.Errorf("LSB_MCPU_HOSTS=%q is not pairs of a host and its slots", text)
		}
		for i := 0; i < len(f); i += 2 {
			slots, err := number(f[i+1])
			if err == nil {
				err = j.add(f[i], slots, i/2)
			}
			if err != nil {
				return fmt.Errorf("LSB_MCPU_HOSTS=%q: %w", text, err)
			}
		}
		if len(j.Hosts) == 0 {
			return fmt.Errorf("LSB_MCPU_HOSTS=%q has no host", text)
		}
		return nil
	}
	for _, name := range []string{"LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE"} {
		if path := src.Getenv(name); path != "" {
			j.Source = name + " " + path
			err := fileLines(src, path, func(index int, line string) error { return j.add(strings.Fields(line)[0], 1, index) })
			if err == nil && len(j.Hosts) == 0 {
				err = fmt.Errorf("%s is empty", path)
			}
			return err
		}
	}
	text := src.Getenv("LSB_HOSTS")
	j.Source = "LSB_HOSTS=" + text
	for i, name := range strings.Fields(text) {
		if err := j.add(name, 1, i); err != nil {
			return fmt.Errorf("LSB_HOSTS=%q: %w", text, err)
		}
	}
	if len(j.Hosts) == 0 {
		return fmt.Errorf("none of LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE, LSB_DJOB_RANKFILE, LSB_HOSTS is set")
	}
	return nil
}
