package job

import (
	"context"
	"net"
	"strings"
	"time"
)

// lookupHost resolves a name, for a bounded time.
func lookupHost(name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return net.DefaultResolver.LookupHost(ctx, name)
}

// hostVars are variables that belong to one host, or to one task of the batch
// system. A rank on another host finds those of its own host, or none. A name that ends in * is a beginning.
var hostVars = []string{
	"HOSTNAME", "HOST", "TMPDIR", "DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_*", "DBUS_SESSION_BUS_ADDRESS",
	"SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "BASH_FUNC_*", "SHLVL", "_", "TERM_SESSION_*",
	"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
	"NCPUS", "PBS_NODENUM", "PBS_TASKNUM", "PBS_VNODENUM", "PBS_MOMPORT", "PBS_JOBCOOKIE", "PBS_NODEFILE", "PBS_JOBDIR", "PBS_GPUFILE", "PBS_MICFILE",
	"SLURMD_*", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_CPUS_ON_NODE", "SLURM_TOPOLOGY_*",
	"SLURM_LAUNCH_*", "SLURM_SRUN_*", "SLURM_STEP*", "SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_DISTRIBUTION", "SLURM_UMASK", "SLURM_PRIO_PROCESS", "SLURM_MPI_TYPE", "PMI_*",
	"SLURM_KILL_BAD_EXIT", "SLURM_OVERLAP",
	"PE_HOSTFILE", "SGE_BINDING", "QUEUE", "LSB_DJOB_*", "LSB_EFFECTIVE_RSRCREQ", "LS_JOBPID", "LS_SUBCWD",
}

func ofOneHost(name string) bool {
	for _, v := range hostVars {
		if prefix, ok := strings.CutSuffix(v, "*"); ok && strings.HasPrefix(name, prefix) || v == name {
			return true
		}
	}
	return false
}

// portableEnv is an environment without what belongs to this host.
func portableEnv(env []string) []string {
	out := make([]string, 0, len(env))
	for _, s := range env {
		if name, _, _ := strings.Cut(s, "="); !ofOneHost(name) {
			out = append(out, s)
		}
	}
	return out
}

// ownEnv is what an agent adds to the environment that it is sent: what belongs to its host.
func ownEnv(env []string) []string {
	var out []string
	for _, s := range env {
		name, _, _ := strings.Cut(s, "=")
		if ofOneHost(name) && name != "SHLVL" && name != "_" && !strings.HasPrefix(name, "SLURM_STEP") && !strings.HasPrefix(name, "PMI_") {
			out = append(out, s)
		}
	}
	return out
}
