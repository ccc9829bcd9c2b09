package lint

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const module = "github.com/weft-hpc/weft"

// layers is the partial order of this module's packages. Each line has packages
// on the left, and on the right what these, outside their tests, may import
// of this module; the standard library and other modules are not its concern.
// The first line that names a package on its left decides about it.
//
// "dir/*" stands for the packages directly in dir, "dir/..." for dir and
// everything below it, "." for the root package and "-" for nothing.
//
// This is a statement of policy: a change here is a change of the design, to be
// explained in ARCHITECTURE.md.
const layers = `
# Leaves know nothing of the others.
internal/wire internal/arena internal/pause internal/cacheline internal/kernel internal/kernel/gen internal/exact: -
internal/control internal/topo internal/batch internal/plane internal/pmi internal/tm: -
internal/lint: -
collective rdma: -

# Providers of rdma, with and without C.
cgo/ibverbs: rdma

# The control plane over ZeroMQ.
cgo/zmq: internal/plane

# The core is a pure state machine over frames.
internal/match: internal/wire
internal/proto: internal/wire internal/match

# What would stop a job: facts and judgements.
internal/check: internal/topo

# Collectives over memory that all ranks map.
internal/board: collective internal/wire internal/cacheline

# Transports move frames, and never know each other.
internal/transport: internal/wire
internal/transport/transporttest: internal/transport internal/wire
internal/transport/verbs: internal/transport internal/wire internal/arena internal/pause rdma
internal/transport/*: internal/transport internal/wire internal/arena internal/pause

# The engine executes what the core decides, on transports it is handed.
internal/progress: internal/proto internal/match internal/wire internal/transport internal/pause

# The launcher starts ranks and holds the other end of their lines.
internal/job: internal/control internal/topo internal/batch internal/plane internal/tm

# Ranks that were started without a launcher keep their job together themselves.
internal/direct: internal/control internal/topo internal/plane internal/pmi

# Suites come with what they test.
collective/collectivetest: collective
rdma/*: rdma
internal/control/controltest: internal/control
internal/pmi/pmitest: internal/control
internal/plane/planetest: internal/plane
internal/tm/tmtest: -

# The user's API puts the layers together. It never imports the schedulers that
# are built on it.
.: internal/... collective rdma cgo/ibverbs

# Built on the API.
wefttest: . internal/...
array: . internal/arena
scheduler: . array
scheduler/farm: . scheduler internal/job internal/control
examples/...: . array scheduler scheduler/farm wefttest

# Programs and measurements may use everything. Nothing may use them.
cmd/...: . internal/... collective rdma cgo/ibverbs cgo/zmq
bench/...: . internal/... collective cmd/... bench/...
ci/cluster/...: . internal/tm/tmtest
ci/...: -
`

// A layer is one line of the policy.
type layer struct{ packages, allowed []string }

// parseLayers reads the policy.
func parseLayers(policy string) ([]layer, error) {
	var all []layer
	for i, line := range strings.Split(policy, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		left, right, ok := strings.Cut(line, ":")
		l := layer{strings.Fields(left), strings.Fields(right)}
		if !ok || len(l.packages) == 0 || len(l.allowed) == 0 {
			return nil, fmt.Errorf("line %d of the policy is not \"packages: allowed\": %q", i+1, line)
		}
		if slices.Contains(l.allowed, "-") {
			if len(l.allowed) > 1 {
				return nil, fmt.Errorf("line %d of the policy allows nothing and something: %q", i+1, line)
			}
			l.allowed = nil
		}
		all = append(all, l)
	}
	return all, nil
}

// matches reports whether one of the patterns names the package in directory dir.
func matches(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if parent, ok := strings.CutSuffix(pattern, "/..."); ok {
			return dir == parent || strings.HasPrefix(dir, parent+"/")
		}
		if parent, ok := strings.CutSuffix(pattern, "/*"); ok {
			return path.Dir(dir) == parent
		}
		return dir == pattern
	})
}

// checkLayers reports imports that the policy does not allow.
func checkLayers(policy string) rule {
	return func(files []file) []string {
		all, err := parseLayers(policy)
		if err != nil {
			return []string{err.Error()}
		}
		var problems []string
		unknown := map[string]bool{}
		for _, f := range files {
			if f.ast == nil || f.isTest() {
				continue
			}
			i := slices.IndexFunc(all, func(l layer) bool { return matches(l.packages, f.dir()) })
			if i < 0 {
				if !unknown[f.dir()] {
					unknown[f.dir()] = true
					problems = append(problems, fmt.Sprintf("package %s has no layer: add it to internal/lint/layers.go, in the lowest layer that does", f.dir()))
				}
				continue
			}
			for _, imported := range f.imports() {
				dir, ours := relative(imported)
				if ours && !matches(all[i].allowed, dir) {
					problems = append(problems, fmt.Sprintf("%s: package %s must not import %s: its layer may import %s; move the code to a layer that may, "+
						"or pass what it needs in as a function or an interface", f.name, f.dir(), dir, orNothing(all[i].allowed)))
				}
			}
		}
		return problems
	}
}

// relative turns the import path of a package of this module into its directory.
func relative(imported string) (dir string, ours bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

func orNothing(patterns []string) string {
	if len(patterns) == 0 {
		return "nothing of this module"
	}
	return "only " + strings.Join(patterns, ", ")
}
