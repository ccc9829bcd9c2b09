package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weft-hpc/weft/cgo/ibverbs"
	"github.com/weft-hpc/weft/internal/check"
	"github.com/weft-hpc/weft/internal/topo"
	"github.com/weft-hpc/weft/internal/transport/tcp"
)

// errProblems is how a check ends that found some, and has said which.
var errProblems = errors.New("there are problems")

// checkOptions are what the command line of weft check says.
type checkOptions struct {
	json, all             bool
	host, hostfile, iface string
}

func checkCommand() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Find what would stop or slow a job, on this host or on several",
		Long: `Finds what would stop or slow a job, and says how to mend it. Nothing is changed.

  weft check                 this host
  weftrun weft check         each host of a batch job, with the limits that its ranks get,
                             and the connections between all of them
  weft check --host n1,n2    the same for these hosts, by weftrun
  srun weft check            the same without weftrun

A line is printed for each problem, with a command that mends it, and for what is absent
(looked for, and not there), unsupported (by this build), or could not be told. The exit
status is 1 when there is a problem, and 0 otherwise.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.host != "" || o.hostfile != "" {
				return checkHosts(&o)
			}
			job, err := findJob(cmd.Context())
			if err != nil {
				return err
			}
			if job != nil {
				return job.check(cmd.Context(), &o, cmd.OutOrStdout())
			}
			facts, _ := gatherFacts(o.iface)
			return report(cmd.OutOrStdout(), &o, facts, check.Judge(facts))
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, for programs: an object on a line for each host")
	cmd.Flags().BoolVar(&o.all, "all", false, "print what is fine, too")
	cmd.Flags().StringVar(&o.host, "host", "", "check these hosts, `LIST` as for weftrun, instead of this one")
	cmd.Flags().StringVar(&o.hostfile, "hostfile", "", "check the hosts in a `FILE`, as for weftrun")
	cmd.Flags().StringVar(&o.iface, "interface", "", "reckon with this network interface, or the one in this `NETWORK`")
	return cmd
}

// checkHosts becomes a weftrun with one check on each host.
func checkHosts(o *checkOptions) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	weftrun := filepath.Join(filepath.Dir(self), "weftrun")
	if _, err := os.Stat(weftrun); err != nil {
		if weftrun, err = exec.LookPath("weftrun"); err != nil {
			return fmt.Errorf("weftrun is neither beside %s nor in PATH: %w", self, err)
		}
	}
	argv := []string{weftrun, "--ppn", "1", "--oversubscribe"}
	add := func(name, value string) {
		if value != "" {
			argv = append(argv, "--"+name, value)
		}
	}
	add("host", o.host)
	add("hostfile", o.hostfile)
	add("interface", o.iface)
	argv = append(argv, self, "check")
	if o.json {
		argv = append(argv, "--json")
	}
	if o.all {
		argv = append(argv, "--all")
	}
	return fmt.Errorf("%s: %w", weftrun, syscall.Exec(weftrun, argv, os.Environ()))
}

// gatherFacts returns the facts of this host, and its address for others.
func gatherFacts(want string) (*check.Facts, string) {
	f := check.Gather(topo.System)
	f.Build = version()
	if sum, err := digest("/proc/self/exe"); err == nil { // else the version is all there is
		f.Build += " " + sum
	}
	if host, err := os.Hostname(); err != nil {
		f.Host = "this host"
	} else {
		f.Host = host
	}
	if cpus, err := topo.Allowed(); err == nil { // else one
		f.CPUs = len(cpus)
	}
	if !ibverbs.Built {
		f.NoVerbs = "this weft was built without cgo, and cannot use RDMA"
	}
	name, addr, err := tcp.Choose(want)
	if err != nil {
		f.Interface.Absent = err.Error()
		return f, ""
	}
	ni, err := net.InterfaceByName(name)
	if err != nil {
		f.Interface.Error = err.Error()
		return f, addr.String()
	}
	f.Interface.Value = check.Interface{Name: name, Addr: addr.String(), MTU: int64(ni.MTU)}
	return f, addr.String()
}

// digest tells builds of one version apart.
func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// report prints the findings of one host, and fails if there is a problem.
func report(w io.Writer, o *checkOptions, facts *check.Facts, all []check.Finding) error {
	if o.json {
		b, err := json.Marshal(struct {
			Host     string          `json:"host"`
			Problem  bool            `json:"problem"`
			Findings []check.Finding `json:"findings"`
			Facts    *check.Facts    `json:"facts"`
		}{facts.Host, check.Bad(all), all, facts})
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n", b)
		}
		if err != nil {
			return err
		}
	} else {
		counts := make(map[check.State]int)
		var text string
		for _, f := range all {
			counts[f.State]++
			if f.State != check.Fine || o.all {
				text += f.String() + "\n"
			}
		}
		text += fmt.Sprintf("%s: %d checks: %d fine", facts.Host, len(all), counts[check.Fine])
		for _, s := range []check.State{check.Problem, check.Absent, check.Unsupported, check.Unknown} {
			if n := counts[s]; n > 0 {
				text += fmt.Sprintf(", %d %v", n, s)
				if s == check.Problem && n > 1 {
					text += "s"
				}
			}
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	if check.Bad(all) {
		return errProblems
	}
	return nil
}
