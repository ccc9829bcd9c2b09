package lint

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// long lists the files that may be longer than maxLines, with the reason.
var long = map[string]string{}

// rules are the rules of this repository.
var rules = map[string]rule{
	"layers":        checkLayers(layers),
	"c":             checkC,
	"unsafe":        checkUnsafe,
	"unix":          checkUnix,
	"length":        checkLength(long),
	"leftovers":     checkLeftovers,
	"package docs":  checkPackageDocs,
	"exported docs": checkExportedDocs(".", "collective", "wefttest"),
}

func TestRepository(t *testing.T) {
	files, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		t.Run(name, func(t *testing.T) {
			for _, problem := range rules[name](files) {
				t.Error(problem)
			}
		})
	}
}

// Every rule must be able to fail: each tree here breaks one rule in one place,
// next to neighbours that look alike and keep it.
func TestRulesCanFail(t *testing.T) {
	for name, tc := range map[string]struct {
		rule  string
		files map[string]string
		want  []string // one element for each problem, a part of its text
	}{
		"a leaf imports the core": {"layers", map[string]string{
			"internal/wire/w.go":  "package wire\nimport _ `" + module + "/internal/match`",
			"internal/match/m.go": "package match\nimport _ `" + module + "/internal/wire`",
		}, []string{"package internal/wire must not import internal/match: its layer may import nothing"}},
		"a driver imports another": {"layers", map[string]string{
			"internal/transport/shm/s.go":      "package shm\nimport _ `" + module + "/internal/transport/tcp`",
			"internal/transport/shm/s_test.go": "package shm\nimport _ `" + module + "/internal/transport/transporttest`",
			"internal/transport/tcp/t.go":      "package tcp\nimport _ `" + module + "/internal/transport`",
		}, []string{"package internal/transport/shm must not import internal/transport/tcp"}},
		"an algorithm imports the API": {"layers", map[string]string{
			"collective/ring.go": "package collective\nimport _ `" + module + "`",
		}, []string{"package collective must not import ."}},
		"the API imports the scheduler": {"layers", map[string]string{
			"world.go": "package weft\nimport _ `" + module + "/scheduler`",
			"comm.go":  "package weft\nimport _ `" + module + "/internal/progress`",
		}, []string{"package . must not import scheduler"}},
		"an example imports what a user cannot": {"layers", map[string]string{
			"examples/x/main.go": "package main\nimport _ `" + module + "/internal/wire`\nimport _ `" + module + "`",
		}, []string{"package examples/x must not import internal/wire"}},
		"something imports a program": {"layers", map[string]string{
			"internal/progress/p.go": "package progress\nimport _ `" + module + "/cmd/weftrun`",
		}, []string{"must not import cmd/weftrun"}},
		"a package without a layer": {"layers", map[string]string{
			"internal/utils/a.go": "package utils",
			"internal/utils/b.go": "package utils",
		}, []string{"package internal/utils has no layer"}},
		"C outside its home": {"c", map[string]string{
			"world.go":         "package weft\nimport `C`",
			"cgo/ibverbs/i.go": "package ibverbs\nimport `C`",
		}, []string{`world.go: must not import "C"`}},
		"unsafe in a plain file": {"unsafe", map[string]string{
			"comm.go":                          "package weft\nimport `unsafe`",
			"comm_test.go":                     "package weft\nimport `unsafe`",
			"bytes_unsafe.go":                  "package weft\nimport `unsafe`",
			"bytes_unsafe_test.go":             "package weft\nimport `unsafe`",
			"internal/arena/x_unsafe_amd64.go": "package arena\nimport `unsafe`",
		}, []string{"comm.go: must not import unsafe", "comm_test.go: must not import unsafe"}},
		"a system call in a plain file": {"unix", map[string]string{
			"internal/arena/arena.go":       "package arena\nimport `golang.org/x/sys/unix`",
			"internal/arena/arena_linux.go": "package arena\nimport `golang.org/x/sys/unix`",
			"internal/arena/map_unsafe.go":  "package arena\nimport `golang.org/x/sys/unix`",
			"internal/arena/arena_test.go":  "package arena\nimport `golang.org/x/sys/unix`",
		}, []string{"internal/arena/arena.go: must not import golang.org/x/sys/unix"}},
		"a long file": {"length", map[string]string{
			"long.go":  "package weft" + strings.Repeat("\n", maxLines+1),
			"short.go": "package weft" + strings.Repeat("\n", maxLines),
		}, []string{"long.go: 701 lines"}},
		"a note for later": {"leftovers", map[string]string{
			"a.go":          "package weft\n\n// TO" + "DO: rest",
			"b.go":          "package weft\n\n// TODOS is another word",
			"ci/x.sh":       "true # FIX" + "ME",
			"testdata/c.go": "package c // TO" + "DO",
		}, []string{"a.go:3:", "ci/x.sh:1:"}},
		"a package without a comment": {"package docs", map[string]string{
			"internal/job/a.go":      "package job",
			"internal/job/a_test.go": "// Package job is documented in the wrong place.\npackage job",
			"internal/topo/doc.go":   "// Package topo is documented.\npackage topo",
			"internal/topo/b.go":     "package topo",
		}, []string{"package internal/job has no package comment"}},
		"exported names without a comment": {"exported docs", map[string]string{
			"a.go": "package weft\n\nfunc Send() {}\n\n// Recv receives.\nfunc Recv() {}\n\nfunc hidden() {}\n\n" +
				"type Comm[T any] struct{}\n\nfunc (c *Comm[T]) Rank() {}\n\ntype inner struct{}\n\nfunc (inner) Len() int { return 0 }\n\nfunc (Comm[T]) String() string { return `` }\n\n" +
				"const (\n\tA = 1\n\tB = 2 // B is explained\n)\n\n// A group.\nvar (\n\tC = 1\n\tD = 2\n)\n",
			"internal/wire/w.go": "package wire\n\nfunc Encode() {}",
		}, []string{"exported Send", "exported Comm", "exported Rank", "exported A"}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{}
			for name, text := range tc.files {
				tree[name] = &fstest.MapFile{Data: []byte(text)}
			}
			files, err := load(tree)
			if err != nil {
				t.Fatal(err)
			}
			got := rules[tc.rule](files)
			if len(got) != len(tc.want) {
				t.Fatalf("%d problems, want %d:\n%s", len(got), len(tc.want), strings.Join(got, "\n"))
			}
			for i, want := range tc.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("problem %q, want one with %q", got[i], want)
				}
			}
		})
	}
}

// Exceptions for length expire: one that is not needed is a problem too.
func TestLengthExceptions(t *testing.T) {
	tree := fstest.MapFS{
		"long.go":   {Data: []byte("package weft" + strings.Repeat("\n", maxLines+1))},
		"vague.go":  {Data: []byte("package weft" + strings.Repeat("\n", maxLines+1))},
		"shrunk.go": {Data: []byte("package weft\n")},
	}
	files, err := load(tree)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(checkLength(map[string]string{"long.go": "a table", "vague.go": "", "shrunk.go": "a table", "gone.go": "a table"})(files), "\n")
	for _, want := range []string{"vague.go: its exception", "shrunk.go: has an exception", "gone.go: has an exception"} {
		if !strings.Contains(got, want) {
			t.Errorf("no problem with %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "long.go:") {
		t.Errorf("an exception with a reason was not honoured:\n%s", got)
	}
}

// A policy that cannot be read allows nothing by mistake.
func TestBadPolicy(t *testing.T) {
	for _, policy := range []string{"internal/wire", "internal/wire:", ": internal/wire", "internal/wire: - internal/match"} {
		if l, err := parseLayers(policy); err == nil {
			t.Errorf("parseLayers(%q) = %v, want an error", policy, l)
		}
	}
	if problems := checkLayers("nonsense")(nil); len(problems) != 1 {
		t.Errorf("a bad policy gives the problems %q, want one", problems)
	}
}
