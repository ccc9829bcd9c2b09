package job

import (
	"fmt"
	"strconv"
	"strings"
)

// allocation is a batch system's job as its environment describes it.
type allocation struct {
	system string // "" outside of a batch job
	id     string
	hosts  int
}

// findAllocation reads how many hosts the batch job has that getenv describes.
// An error means that there is one, and that its description is not understood.
func findAllocation(getenv func(string) string, readFile func(string) ([]byte, error)) (allocation, error) {
	a := allocation{hosts: 1}
	var err error
	switch {
	case getenv("SLURM_JOB_ID") != "":
		a.system, a.id = "Slurm", getenv("SLURM_JOB_ID")
		if n := getenv("SLURM_JOB_NUM_NODES"); n != "" {
			a.hosts, err = strconv.Atoi(n)
		}
	case getenv("PBS_JOBID") != "":
		a.system, a.id = "PBS", getenv("PBS_JOBID")
		a.hosts, err = hostsIn(getenv("PBS_NODEFILE"), readFile) // a line for each slot
	case getenv("LSB_JOBID") != "":
		a.system, a.id = "LSF", getenv("LSB_JOBID")
		if fields := strings.Fields(getenv("LSB_MCPU_HOSTS")); len(fields) > 0 { // host slots host slots ...
			a.hosts = len(fields) / 2
		}
	case getenv("PE_HOSTFILE") != "":
		a.system, a.id = "Grid Engine", getenv("JOB_ID")
		a.hosts, err = hostsIn(getenv("PE_HOSTFILE"), readFile) // host slots queue cpus
	}
	if err != nil {
		return a, fmt.Errorf("the hosts of %s job %s cannot be told: %w", a.system, a.id, err)
	}
	return a, nil
}

// hostsIn counts the different first words of a file's lines.
func hostsIn(path string, readFile func(string) ([]byte, error)) (int, error) {
	if path == "" {
		return 1, nil
	}
	b, err := readFile(path)
	if err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			seen[fields[0]] = true
		}
	}
	return max(len(seen), 1), nil
}

// checkAllocation refuses a job on several hosts, of which this release would
// leave all but one idle, unless the user says that this is wanted.
func checkAllocation(a allocation, oneHost bool) error {
	if a.hosts > 1 && !oneHost {
		return failf(ExitSetup, "%s job %s has %d hosts, and this release of weftrun starts ranks on one: ask for one host, or say --one-host to leave the others idle",
			a.system, a.id, a.hosts)
	}
	return nil
}
