package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Section is a headed table of a Markdown report.
type Section struct {
	Title string
	Text  string
	Rows  []Row
}

// WriteMarkdown writes sections after a heading and an introduction, and then
// why cells have no number.
func WriteMarkdown(w io.Writer, title, intro string, sections []Section) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", title, strings.TrimSpace(intro))
	var reasons []string
	for _, s := range sections {
		if len(s.Rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", s.Title)
		if s.Text != "" {
			fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(s.Text))
		}
		writeTable(&b, s.Rows, &reasons)
	}
	if len(reasons) > 0 {
		fmt.Fprintf(&b, "\n## Notes\n\n")
		for i, why := range reasons {
			fmt.Fprintf(&b, "%d. %s\n", i+1, strings.Join(strings.Fields(why), " "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var columns = []string{"test", "transport", "ranks", "bytes", "memory", "unit", "ours", "Open MPI", "MPICH", "best flags",
	"floor", "ratio (95 %)", "to best flags", "x floor", "target", "met"}

func writeTable(b *strings.Builder, rows []Row, reasons *[]string) {
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, r := range rows {
		cell := func(v Value) string {
			if v.why == "" {
				return v.String()
			}
			return fmt.Sprintf("failed [%d]", footnote(reasons, v.why))
		}
		name := r.Name
		for _, n := range r.Notes {
			name += fmt.Sprintf(" [%d]", footnote(reasons, n))
		}
		ratio := cell(r.Ratio)
		if r.Ratio.ok {
			ratio = fmt.Sprintf("%s (%.2f..%.2f)", ratio, r.Low, r.High)
		}
		fields := []string{name, r.Transport, fmt.Sprint(r.Ranks), fmt.Sprint(r.Bytes), r.Memory, r.Unit,
			cell(r.Ours), cell(r.OpenMPI), cell(r.MPICH), cell(r.BestFlags), cell(r.Floor),
			ratio, cell(r.BestRatio), r.overFloor(), r.Target, r.verdict()}
		fmt.Fprintf(b, "| %s |\n", strings.Join(fields, " | "))
	}
}

func footnote(reasons *[]string, why string) int {
	if i := slices.Index(*reasons, why); i >= 0 {
		return i + 1
	}
	*reasons = append(*reasons, why)
	return len(*reasons)
}

func (r *Row) overFloor() string {
	ours, ok1 := r.Ours.Get()
	floor, ok2 := r.Floor.Get()
	if !ok1 || !ok2 || floor == 0 {
		return "-"
	}
	return Num(ours / floor).String()
}

func (r *Row) verdict() string {
	switch {
	case r.Target == "":
		return ""
	case r.Met == nil:
		return "could not tell"
	case *r.Met:
		return "yes"
	}
	return "**no**"
}
