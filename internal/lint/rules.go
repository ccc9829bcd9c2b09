package lint

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A file is one source file of the tree. ast is nil unless it is a Go file.
type file struct {
	name string // slash-separated, relative to the root of the module
	data []byte
	ast  *ast.File
	fset *token.FileSet
}

// A rule returns one line for each thing that breaks it.
type rule func(files []file) []string

func (f file) dir() string  { return path.Dir(f.name) }
func (f file) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

func (f file) imports() []string {
	var paths []string
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser made sure
		}
		paths = append(paths, p)
	}
	return paths
}

func (f file) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.name, f.fset.Position(pos).Line)
}

// load reads the source files of a module. It leaves out test data, hidden
// directories but .ci, what is built into bin and out, and nested modules.
func load(root fs.FS) ([]file, error) {
	var files []file
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := path.Base(name)
			hidden := strings.HasPrefix(base, ".") && base != "." && base != ".ci"
			if hidden || base == "testdata" || name == "bin" || name == "out" {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil && name != "." {
				return fs.SkipDir
			}
			return nil
		}
		f := file{name: name}
		if !isSource(name) {
			return nil
		}
		if f.data, err = fs.ReadFile(root, name); err != nil {
			return err
		}
		if strings.HasSuffix(name, ".go") {
			f.fset = token.NewFileSet()
			if f.ast, err = parser.ParseFile(f.fset, name, f.data, parser.ParseComments|parser.SkipObjectResolution); err != nil {
				return err
			}
			if slices.ContainsFunc(f.ast.Comments, isIgnored) {
				f.ast = nil // a program of its own, run by hand: only the rules on text hold
			}
		}
		files = append(files, f)
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("no source file found")
	}
	return files, err
}

// isSource reports whether the rules on text hold for a file.
func isSource(name string) bool {
	switch path.Ext(name) {
	case ".go", ".s", ".c", ".h", ".sh":
		return true
	}
	return path.Base(name) == "Makefile" || name == ".ci/run"
}

func isIgnored(group *ast.CommentGroup) bool {
	return slices.ContainsFunc(group.List, func(c *ast.Comment) bool { return c.Text == "//go:build ignore" })
}

// checkC keeps C in its home.
func checkC(files []file) []string {
	return forbidImport(files, `"C"`, func(p string) bool { return p == "C" },
		func(f file) bool { return strings.HasPrefix(f.name, "cgo/") },
		"only packages under cgo/ may; everything else must build with CGO_ENABLED=0")
}

var (
	unsafeFile = regexp.MustCompile(`_unsafe(_[a-z0-9]+)*\.go$`)
	linuxFile  = regexp.MustCompile(`_linux(_[a-z0-9]+)*\.go$`)
)

// checkUnsafe keeps unsafe code where an audit finds it by name.
func checkUnsafe(files []file) []string {
	return forbidImport(files, "unsafe", func(p string) bool { return p == "unsafe" },
		func(f file) bool { return unsafeFile.MatchString(f.name) },
		"only files named *_unsafe.go may; move the few lines that need it into one, behind a safe function")
}

// checkUnix keeps system calls where a port to another system finds them. Tests
// are free: they check what the system did.
func checkUnix(files []file) []string {
	return forbidImport(files, "golang.org/x/sys/unix", func(p string) bool { return p == "golang.org/x/sys/unix" },
		func(f file) bool {
			return f.isTest() || unsafeFile.MatchString(f.name) || linuxFile.MatchString(f.name)
		},
		"only files named *_linux.go or *_unsafe.go may; move the system call into one")
}

func forbidImport(files []file, what string, forbidden func(string) bool, exempt func(file) bool, advice string) []string {
	var problems []string
	for _, f := range files {
		if f.ast != nil && !exempt(f) && slices.ContainsFunc(f.imports(), forbidden) {
			problems = append(problems, fmt.Sprintf("%s: must not import %s: %s", f.name, what, advice))
		}
	}
	return problems
}

const maxLines = 700

// generated marks files that nobody reads: one reads their generator.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// checkLength keeps files short enough to read in one sitting, but for those that
// are generated. long has the exceptions, with their reasons.
func checkLength(long map[string]string) rule {
	return func(files []file) []string {
		var problems []string
		seen := map[string]bool{}
		for _, f := range files {
			lines := bytes.Count(f.data, []byte("\n"))
			reason, excepted := long[f.name]
			seen[f.name] = true
			switch {
			case lines > maxLines && !excepted && !generated.Match(f.data):
				problems = append(problems, fmt.Sprintf("%s: %d lines, the limit is %d: split it by what its parts do, "+
					"or give the reason it cannot be in internal/lint/lint_test.go", f.name, lines, maxLines))
			case lines <= maxLines && excepted:
				problems = append(problems, fmt.Sprintf("%s: has an exception for its length and needs none (%d lines): remove it from internal/lint/lint_test.go", f.name, lines))
			case excepted && reason == "":
				problems = append(problems, fmt.Sprintf("%s: its exception for length lacks a reason", f.name))
			}
		}
		for name := range long {
			if !seen[name] {
				problems = append(problems, fmt.Sprintf("%s: has an exception for its length and does not exist: remove it from internal/lint/lint_test.go", name))
			}
		}
		return problems
	}
}

// The words are put together here so that this file does not break its own rule.
var leftover = regexp.MustCompile(`\b(` + "TO" + "DO|FIX" + "ME|XX" + "X)\\b")

// checkLeftovers reports notes to do something later.
func checkLeftovers(files []file) []string {
	var problems []string
	for _, f := range files {
		for i, line := range bytes.Split(f.data, []byte("\n")) {
			if m := leftover.Find(line); m != nil {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: do it now, or open an issue and describe the limit in the documentation", f.name, i+1, m))
			}
		}
	}
	return problems
}

// checkPackageDocs wants a package comment on every package.
func checkPackageDocs(files []file) []string {
	documented := map[string]bool{}
	for _, f := range files {
		if f.ast != nil && !f.isTest() {
			documented[f.dir()] = documented[f.dir()] || f.ast.Doc.Text() != ""
		}
	}
	var problems []string
	for dir, ok := range documented {
		if !ok {
			problems = append(problems, fmt.Sprintf("package %s has no package comment: say what it is for, what its words mean, who owns what, and what it does not do", dir))
		}
	}
	slices.Sort(problems)
	return problems
}

// checkExportedDocs wants a comment on every exported name of the packages in
// dirs. A comment on a group of constants, variables or types counts for each
// of the group.
func checkExportedDocs(dirs ...string) rule {
	return func(files []file) []string {
		var problems []string
		for _, f := range files {
			if f.ast == nil || f.isTest() || !slices.Contains(dirs, f.dir()) {
				continue
			}
			missing := func(id *ast.Ident) {
				problems = append(problems, fmt.Sprintf("%s: exported %s has no comment: say what its caller must know", f.at(id.Pos()), id.Name))
			}
			for _, decl := range f.ast.Decls {
				switch decl := decl.(type) {
				case *ast.FuncDecl:
					if decl.Name.IsExported() && decl.Doc.Text() == "" && exportedReceiver(decl) && !wellKnown(decl) {
						missing(decl.Name)
					}
				case *ast.GenDecl:
					if decl.Doc.Text() == "" {
						undocumentedSpecs(decl, missing)
					}
				}
			}
		}
		return problems
	}
}

func undocumentedSpecs(decl *ast.GenDecl, missing func(*ast.Ident)) {
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && spec.Doc.Text() == "" && spec.Comment.Text() == "" {
				missing(spec.Name)
			}
		case *ast.ValueSpec:
			for _, id := range spec.Names {
				if id.IsExported() && spec.Doc.Text() == "" && spec.Comment.Text() == "" {
					missing(id)
				}
			}
		}
	}
}

// wellKnown reports whether decl is a method that everybody knows from the
// standard library.
func wellKnown(decl *ast.FuncDecl) bool {
	return decl.Recv != nil && slices.Contains([]string{"String", "Error", "Unwrap"}, decl.Name.Name)
}

// exportedReceiver reports whether decl is a function, or a method of an
// exported type.
func exportedReceiver(decl *ast.FuncDecl) bool {
	if decl.Recv == nil {
		return true
	}
	t := decl.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}
