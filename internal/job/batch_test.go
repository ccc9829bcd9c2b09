package job

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestAllocation(t *testing.T) {
	files := map[string]string{
		"nodes3": "n1\nn1\nn1\nn1\nn2\n", // of a real OpenPBS: select=2:ncpus=2:mpiprocs=2+1:ncpus=4:mpiprocs=1
		"nodes1": "n1\nn1\n",
		"pe2":    "n1 2 all.q@n1 UNDEFINED\nn2 1 all.q@n2 UNDEFINED\n",
	}
	readFile := func(name string) ([]byte, error) {
		if s, ok := files[name]; ok {
			return []byte(s), nil
		}
		return nil, os.ErrNotExist
	}
	for _, test := range []struct {
		env   string
		hosts int
		fails bool
	}{
		{"", 1, false},
		{"SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=3", 3, false},
		{"SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=1", 1, false},
		{"SLURM_JOB_ID=1", 1, false},
		{"SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=many", 0, true},
		{"PBS_JOBID=0.head PBS_NODEFILE=nodes3", 2, false},
		{"PBS_JOBID=0.head PBS_NODEFILE=nodes1", 1, false},
		{"PBS_JOBID=0.head PBS_NODEFILE=missing", 0, true},
		{"LSB_JOBID=7 LSB_MCPU_HOSTS=a|4|b|2", 2, false},
		{"LSB_JOBID=7 LSB_MCPU_HOSTS=a|4", 1, false},
		{"JOB_ID=9 PE_HOSTFILE=pe2", 2, false},
	} {
		env := map[string]string{}
		for _, s := range strings.Fields(test.env) {
			name, value, _ := strings.Cut(s, "=")
			env[name] = strings.ReplaceAll(value, "|", " ")
		}
		a, err := findAllocation(func(name string) string { return env[name] }, readFile)
		if (err != nil) != test.fails || err == nil && a.hosts != test.hosts {
			t.Errorf("%s: %+v, %v; want %d hosts", test.env, a, err, test.hosts)
			continue
		}
		if err != nil {
			continue
		}
		refused := checkAllocation(a, false)
		if (refused != nil) != (test.hosts > 1) || checkAllocation(a, true) != nil {
			t.Errorf("%s: refused: %v", test.env, refused)
		}
		if e, ok := errors.AsType[*Error](refused); refused != nil && (!ok || e.Code != ExitSetup || !strings.Contains(refused.Error(), "--one-host")) {
			t.Errorf("%s: %#v", test.env, refused)
		}
	}
}
