package report

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// Machine says where and how a table was made. It is written beside the rows.
type Machine struct {
	Time       time.Time `json:"time"`
	Processor  string    `json:"processor"`
	CPUs       int       `json:"cpus"`
	Kernel     string    `json:"kernel"`
	Go         string    `json:"go"`
	LoadBefore string    `json:"load_before"`
	LoadAfter  string    `json:"load_after"`
	// Foreign is the processor time, in cores, that programs used which have no
	// part in the comparison. Figures taken beside them are worth little.
	Foreign float64           `json:"foreign_cores"`
	Peers   map[string]string `json:"peers"` // version of each
	Runs    []Run             `json:"contestants"`
	Notes   []string          `json:"notes"`
}

// Run is one contestant of a comparison.
type Run struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Env     []string `json:"env,omitempty"`
	CPUs    []string `json:"cpus,omitempty"` // that each rank may use
	// Idle is the processor time in cores that it used while others had their
	// turn. Its effect on the others is at most of this order.
	Idle  float64 `json:"idle_cores"`
	Error string  `json:"error,omitempty"`
}

// ThisMachine describes the machine before a run.
func ThisMachine() Machine {
	return Machine{
		Time:       time.Now().UTC().Truncate(time.Second),
		Processor:  cpuModel(),
		CPUs:       runtime.NumCPU(),
		Kernel:     firstLine("/proc/sys/kernel/osrelease"),
		Go:         runtime.Version(),
		LoadBefore: firstLine("/proc/loadavg"),
		Peers:      map[string]string{},
	}
}

// Finish notes the state of the machine after a run. Foreign is the caller's to
// set.
func (m *Machine) Finish() { m.LoadAfter = firstLine("/proc/loadavg") }

// Write writes m as JSON.
func (m *Machine) Write(path string) error { return writeJSON(path, m) }

// Version asks a program for the first line of its version, or says that it is
// missing.
func Version(argv ...string) string {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return "missing: " + err.Error()
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown: " + err.Error()
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown: " + err.Error()
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown: " + runtime.GOARCH
}
