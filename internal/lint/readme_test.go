package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// codeBlocks returns the blocks of a language in a Markdown text.
func codeBlocks(text, language string) []string {
	var blocks []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// What the README tells a newcomer to type is typed here: its program is built
// in a module of its own, which imports weft through a replace line, and run
// under weftrun.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := codeBlocks(string(readme), "go")
	if len(programs) != 1 {
		t.Fatalf("README.md has %d Go programs, want 1", len(programs))
	}
	var script string
	for _, block := range codeBlocks(string(readme), "sh") {
		if strings.Contains(block, "go mod init") {
			script = block
		}
	}
	// The clone is not beside the test's directory, and may not be built.
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	weftrun := filepath.Join(dir, "weftrun")
	for _, r := range [][2]string{{"../weft/bin/weftrun", weftrun}, {"../weft", root}} {
		if !strings.Contains(script, r[0]) {
			t.Fatalf("README.md does not use %s in the commands that build its program:\n%s", r[0], script)
		}
		script = strings.ReplaceAll(script, r[0], r[1])
	}
	run := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		// Everything must be in the module cache already, checked against go.sum: the network is not asked.
		cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=mod", "GONOSUMDB=*")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run(root, "go", "build", "-mod=readonly", "-o", weftrun, "./cmd/weftrun")

	module := filepath.Join(dir, "pi")
	if err := os.Mkdir(module, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(module, "main.go"), []byte(programs[0]), 0o666); err != nil {
		t.Fatal(err)
	}
	if out := run(module, "bash", "-euxc", script); strings.Count(out, "pi is about 3.14159265") != 1 {
		t.Errorf("the README's program printed:\n%s", out)
	}
}
