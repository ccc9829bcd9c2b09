package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/bench/report"
)

// The table of a page stands between these lines.
const (
	pageBegin = "<!-- make compare: begin -->"
	pageEnd   = "<!-- make compare: end -->"
)

// writePage writes the rows with a target, with the machine and without a date, to path,
// and into page if that is named.
func writePage(path, page string, rows []report.Row, m *report.Machine) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "`make compare%s` on %s, %d processors, Linux %s, %s; Open MPI %s; MPICH %s.\n\n", makeArgs(os.Args[1:]), m.Processor, m.CPUs,
		m.Kernel, m.Go, lastWord(m.Peers["openmpi"]), lastWord(m.Peers["mpich"]))
	for _, n := range m.Notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	if len(m.Notes) > 0 {
		b.WriteByte('\n')
	}
	if err := report.WriteSummary(&b, rows); err != nil {
		return err
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil || page == "" {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("--page: %w", err)
	}
	changed, err := replaceTable(string(text), b.String())
	if err != nil {
		return fmt.Errorf("--page %s: %w", page, err)
	}
	return os.WriteFile(page, []byte(changed), 0o644)
}

// lastWord is the number in what a program says about its version.
func lastWord(version string) string {
	if words := strings.Fields(version); len(words) > 0 && !strings.HasPrefix(version, "missing") {
		return words[len(words)-1]
	}
	return version
}

// makeArgs is how the arguments are given to make.
func makeArgs(args []string) string {
	if len(args) == 0 {
		return ""
	}
	quoted := slices.Clone(args)
	for i, a := range quoted {
		if strings.ContainsAny(a, " |&;()<>[]*?$") {
			quoted[i] = `"` + strings.ReplaceAll(a, "$", `\$$`) + `"` // for the shell, and for make
		}
	}
	return " ARGS='" + strings.Join(quoted, " ") + "'"
}

// replaceTable replaces what is between the two lines in text.
func replaceTable(text, table string) (string, error) {
	head, rest, ok1 := strings.Cut(text, pageBegin+"\n")
	_, tail, ok2 := strings.Cut(rest, pageEnd+"\n")
	if !ok1 || !ok2 {
		return "", fmt.Errorf("it has no line %q with a line %q after it", pageBegin, pageEnd)
	}
	return head + pageBegin + "\n\n" + strings.TrimSpace(table) + "\n\n" + pageEnd + "\n" + tail, nil
}
