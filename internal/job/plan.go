package job

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/batch"
	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/topo"
)

// Plan is what will be done on this host, and which ranks run on others. It is made
// without starting anything.
type Plan struct {
	Spec           *Spec
	Job            string // the job's name
	Host           string
	Size           int    // ranks of the job
	Local          []int  // those on this host, ascending
	Ranks          []Rank // the same, with how to run them
	Allowed        []int  // processors of this host that the job may use
	Binding        string // what was decided, and why
	Oversubscribed bool
	Arena          int64 // bytes for each rank; 0: no shared memory
	Secret         []byte
	layout         control.Layout

	Others   []Site     // the other hosts that have ranks
	starter  *starter   // that starts agents on them
	traffic  *traffic   // counts, in a simulation; else nil
	Batch    *batch.Job // that this is; nil for none
	programs []int      // by rank of the job: index of its program
	base     []string   // environment that programs add to
	dir      string     // that the launcher runs in
}

// Rank is one rank of a plan.
type Rank struct {
	Program *Program
	Path    string // the file to execute
	Dir     string // absolute
	CPUs    []int  // to bind to; nil for no binding
	bound   string // what CPUs are
	env     []string
}

// NewPlan plans a job, and in detail what of it runs on this host.
func NewPlan(spec *Spec) (*Plan, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, &Error{ExitSetup, err}
	}
	p := &Plan{Spec: spec, Job: "weft-" + strconv.Itoa(os.Getpid()) + "-" + rand.Text()[:6], Host: host, Secret: control.NewSecret()}
	if p.dir, err = workDir(""); err != nil {
		return nil, err
	}
	p.base = baseEnv(os.Environ())
	if !spec.Tag && spec.Output == "" {
		p.base = mergeEnv(windowSize(), p.base)
	}
	here := func(names []string) int { return findHere(host, names) }
	if spec.Launcher == "fork" { // all hosts but this one are only names
		here = func(names []string) int { return slices.Index(names, host) }
	}
	if err := p.place(batch.System(), here); err != nil {
		return nil, err
	}
	return p, p.detail()
}

// detail plans how the ranks of this host run.
func (p *Plan) detail() error {
	n := len(p.Local)
	p.Ranks = make([]Rank, 0, n)
	if n == 0 {
		return nil
	}
	if err := checkRoom(topo.System, n); err != nil {
		return err
	}
	programs := make(map[int]*Rank)
	for _, rank := range p.Local {
		r := programs[p.programs[rank]]
		if r == nil {
			var err error
			if r, err = p.program(&p.Spec.Programs[p.programs[rank]]); err != nil {
				return err
			}
			programs[p.programs[rank]] = r
		}
		p.Ranks = append(p.Ranks, *r)
	}
	var err error
	if p.Arena, err = arena(topo.System, p.Spec, n); err != nil {
		return err
	}
	return p.bind(topo.System)
}

// program returns how each rank of a program runs.
func (p *Plan) program(prog *Program) (*Rank, error) {
	dir, err := workDir(prog.Dir)
	if err != nil {
		return nil, err
	}
	env := mergeEnv(p.base, prog.Env)
	path, err := findProgram(prog.Argv[0], dir, env)
	if err != nil {
		return nil, err
	}
	if prog.Dir != "" {
		env = mergeEnv(env, []string{"PWD=" + dir})
	}
	return &Rank{Program: prog, Path: path, Dir: dir, env: env}, nil
}

// arena returns the bytes of shared or registered memory for each rank.
func arena(machine topo.Root, spec *Spec, n int) (int64, error) {
	if spec.Transport == "tcp" || spec.Arena > 0 {
		return spec.Arena, nil
	}
	total, _, err := machine.Memory()
	if err != nil {
		return 0, failf(ExitSetup, "how much memory is there? %w; --arena SIZE does without knowing", err)
	}
	return total / 2 / int64(n), nil
}

// vars returns the variables that the launcher sets for a local rank, without
// those that name descriptors.
func (p *Plan) vars(local int) []string {
	return []string{control.VarRank + "=" + strconv.Itoa(p.Local[local]), control.VarSize + "=" + strconv.Itoa(p.Size),
		control.VarLocalRank + "=" + strconv.Itoa(local), control.VarLocalSize + "=" + strconv.Itoa(len(p.Local)),
		control.VarJob + "=" + p.Job, control.VarRestart + "=" + strconv.Itoa(p.Spec.Try)}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func quoteAll(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quote(w)
	}
	return strings.Join(out, " ")
}

// quote returns a word as a shell takes it.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-+=./,:@%", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// workDir returns the absolute directory that ranks start in.
func workDir(dir string) (string, error) {
	if dir == "" {
		cwd, err := os.Getwd() // $PWD where it is the same place, as users see it
		if err != nil {
			return "", failf(ExitSetup, "the working directory is gone: %w; change to one that exists or give --wdir", err)
		}
		return cwd, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", &Error{ExitSetup, err}
	}
	st, err := os.Stat(abs)
	switch {
	case err != nil:
		return "", failf(ExitSetup, "--wdir %s: %w", dir, err)
	case !st.IsDir():
		return "", failf(ExitSetup, "--wdir %s: not a directory", dir)
	}
	return abs, nil
}

// baseEnv is the launcher's environment without what an outer launcher set.
func baseEnv(env []string) []string {
	ours := append(control.Vars(), control.VarTerminal, control.VarRestart)
	return slices.DeleteFunc(env, func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains(ours, name)
	})
}

// mergeEnv returns base with what set names replaced or added.
func mergeEnv(base, set []string) []string {
	if len(set) == 0 {
		return base
	}
	at := make(map[string]int, len(set))
	for i, s := range set {
		name, _, _ := strings.Cut(s, "=")
		at[name] = i // the last one counts
	}
	out := make([]string, 0, len(base)+len(set))
	for _, s := range base {
		name, _, _ := strings.Cut(s, "=")
		if _, ok := at[name]; !ok {
			out = append(out, s)
		}
	}
	for i, s := range set {
		name, _, _ := strings.Cut(s, "=")
		if at[name] == i {
			out = append(out, s)
		}
	}
	return out
}

func lookup(env []string, name string) string {
	for _, s := range slices.Backward(env) {
		if n, v, _ := strings.Cut(s, "="); n == name {
			return v
		}
	}
	return ""
}

// findProgram returns the file that a program's name means, as a shell would
// find it from dir.
func findProgram(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, name)
		}
		return path, executable(path, name, dir)
	}
	path := lookup(env, "PATH")
	var found error
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		file := filepath.Join(d, name)
		err := executable(file, name, dir)
		if err == nil {
			return file, nil
		}
		if st, statErr := os.Stat(file); statErr == nil && !st.IsDir() && found == nil {
			found = err
		}
	}
	if found != nil {
		return "", found
	}
	hint := ""
	if executable(filepath.Join(dir, name), name, dir) == nil {
		hint = "; there is one in that directory: did you mean ./" + name + "?"
	}
	return "", failf(ExitNoProgram, "program %q was not found in PATH=%s (working directory %s)%s", name, path, dir, hint)
}

// executable explains why a file cannot be run, if it cannot.
func executable(path, name, dir string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failf(ExitNoProgram, "program %q was not found: no file %s (working directory %s)", name, path, dir)
	case err != nil:
		return failf(ExitNotProgram, "program %q cannot be run: %w (working directory %s)", name, err, dir)
	case st.IsDir():
		return failf(ExitNotProgram, "program %q cannot be run: %s is a directory (working directory %s)", name, path, dir)
	case mayExecute(path) != nil:
		return failf(ExitNotProgram, "program %q cannot be run: %s is not executable (mode %v, working directory %s); chmod +x it",
			name, path, st.Mode(), dir)
	}
	return nil
}
