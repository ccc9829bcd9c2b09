package job

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// starter is a way to start agents on other hosts. It starts them and no more:
// what agents have to say, their exit codes included, goes over package plane.
type starter struct {
	name     string
	why      string       // it was chosen
	program  string       // that must be in PATH; "" for none
	absent   string       // what to say where it is not; "" for just that
	file     bool         // the secret goes in a file, since standard input does not arrive
	together bool         // one command starts all agents
	forks    bool         // on this very host, to try things out
	tree     bool         // works from other hosts too, so that agents can start agents; batch systems' own tools mostly do not, and are made for many calls
	fake     func(f *far) // has agents that are goroutines of ours, in a simulation
	command  func(site Site, agent []string) []string
	all      func(sites []Site, agent []string) []string // where together
}

// command starts the agent of a site, or of all sites when site is -1.
type command struct {
	Site int      `cbor:"1,keyasint"`
	Argv []string `cbor:"2,keyasint"`
}

// agentName stands for the name of a site in an agent's arguments, where all
// agents are started by one command.
const agentName = "-"

var starters = []*starter{
	{name: "ssh", program: "ssh", tree: true, command: func(site Site, agent []string) []string {
		// Whether a host's key is known is for the user's own configuration to say.
		return []string{"ssh", "-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", site.Name, shellCommand(agent)}
	}},
	{name: "srun", program: "srun", together: true, all: func(sites []Site, agent []string) []string {
		names := make([]string, len(sites))
		for i, s := range sites {
			names[i] = s.Name
		}
		n := strconv.Itoa(len(sites))
		// An agent needs all processors of its host, whatever a task of the job gets,
		// and the loss of one is for weftrun to judge.
		return append([]string{"srun", "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--nodelist=" + strings.Join(names, ","),
			"--mpi=none", "--cpu-bind=none", "--overlap", "--kill-on-bad-exit=0", "--input=all"}, agent...)
	}},
	{name: "qrsh", program: "qrsh", file: true, command: func(site Site, agent []string) []string {
		return []string{"qrsh", "-inherit", "-nostdin", "-V", site.Name, shellCommand(agent)}
	}},
	// The command is only shown: see spawner.
	{name: tmName, program: tmName, absent: "PBS does not say how to reach its MoM (PBS_MOMPORT)", command: func(site Site, agent []string) []string {
		return append([]string{"TM_SPAWN", strconv.Itoa(site.Index)}, agent...)
	}},
	{name: "pbsdsh", program: "pbsdsh", file: true, command: func(site Site, agent []string) []string {
		return append([]string{"pbsdsh", "-n", strconv.Itoa(site.Index), "--"}, agent...)
	}},
	{name: "pbs_tmrsh", program: "pbs_tmrsh", file: true, command: func(site Site, agent []string) []string {
		return append([]string{"pbs_tmrsh", site.Name}, agent...)
	}},
	{name: "blaunch", program: "blaunch", file: true, command: func(site Site, agent []string) []string {
		return []string{"blaunch", site.Name, shellCommand(agent)}
	}},
	{name: "fork", forks: true, tree: true, command: func(_ Site, agent []string) []string { return agent }},
}

// Launchers lists the names that --launcher takes.
func Launchers() []string {
	out := make([]string, len(starters))
	for i, s := range starters {
		out[i] = s.name
	}
	return out
}

// preferred are the starters of each batch system, the best first.
var preferred = map[string][]string{
	"Slurm": {"srun", "ssh"}, "PBS": {tmName, "pbsdsh", "pbs_tmrsh", "ssh"}, "Torque": {tmName, "pbsdsh", "ssh"}, "Grid Engine": {"qrsh", "ssh"}, "LSF": {"blaunch", "ssh"},
	"": {"ssh"},
}

// chooseStarter returns the starter that was asked for, or the best one that is
// installed.
func chooseStarter(asked, system string, installed func(string) bool) (*starter, error) {
	find := func(name string) *starter {
		i := slices.IndexFunc(starters, func(s *starter) bool { return s.name == name })
		if i < 0 {
			return nil
		}
		s := *starters[i]
		return &s
	}
	if asked != "" {
		s := find(asked)
		switch {
		case s == nil:
			return nil, failf(ExitUsage, "--launcher %s: not one of %s", asked, strings.Join(Launchers(), ", "))
		case s.program != "" && !installed(s.program):
			return nil, failf(ExitSetup, "--launcher %s: %s", asked, s.missing())
		}
		s.why = "as asked"
		return s, nil
	}
	var missing []string
	for _, name := range preferred[system] {
		s := find(name)
		if !installed(s.program) {
			missing = append(missing, s.missing())
			continue
		}
		s.why = "the way of " + system
		if system == "" {
			s.why = "no batch system is there"
		}
		if missing != nil {
			s.why = strings.Join(missing, "; ")
		}
		return s, nil
	}
	return nil, failf(ExitSetup, "nothing starts processes on other hosts: %s", strings.Join(missing, "; "))
}

func (s *starter) missing() string {
	if s.absent != "" {
		return s.absent
	}
	return s.program + " is not in PATH"
}

func inPath(program string) bool {
	if program == tmName {
		return tmThere()
	}
	_, err := exec.LookPath(program)
	return err == nil
}

// commands returns what starts the agents of these sites. Agent is the command line of an
// agent with its name last.
func (s *starter) commands(sites []Site, agent []string) []command {
	if s.together {
		return []command{{Site: -1, Argv: s.all(sites, append(slices.Clone(agent), agentName))}}
	}
	out := make([]command, len(sites))
	for i, site := range sites {
		out[i] = command{Site: i, Argv: s.command(site, append(slices.Clone(agent), site.Name))}
	}
	return out
}

// shellCommand returns words as a command for a shell at the other end, which
// is the user's, whichever that is.
func shellCommand(words []string) string { return quoteAll(words) }
