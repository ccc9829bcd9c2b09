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
		b.WriteString("\n## Notes\n")
		writeReasons(&b, reasons)
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
			return fmt.Sprintf("%s [%d]", v, footnote(reasons, v.why))
		}
		name := r.Name
		for _, n := range r.Notes {
			name += fmt.Sprintf(" [%d]", footnote(reasons, n))
		}
		fields := []string{name, r.Transport, fmt.Sprint(r.Ranks), fmt.Sprint(r.Bytes), r.Memory, r.Unit,
			cell(r.Ours), cell(r.OpenMPI), cell(r.MPICH), cell(r.BestFlags), cell(r.Floor),
			r.interval(cell), cell(r.BestRatio), r.overFloor(), r.Target, r.verdict()}
		fmt.Fprintf(b, "| %s |\n", strings.Join(fields, " | "))
	}
}

// WriteSummary writes a narrower table of the rows with a target, and why cells have
// no number.
func WriteSummary(w io.Writer, rows []Row) error {
	var b strings.Builder
	var reasons []string
	b.WriteString("| test | ranks | bytes | unit | ours | Open MPI | MPICH | best flags | ratio (95 %) | target | met |\n|" +
		strings.Repeat("---|", 11) + "\n")
	for _, r := range rows {
		if r.Target == "" {
			continue
		}
		cell := func(v Value) string {
			if v.why == "" {
				return v.String()
			}
			return fmt.Sprintf("%s [%d]", v, footnote(&reasons, v.why))
		}
		name := strings.TrimSuffix(fmt.Sprintf("%s, %s, %s", r.Name, r.Transport, r.Memory), ", ")
		for _, n := range r.Notes {
			name += fmt.Sprintf(" [%d]", footnote(&reasons, n))
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", name, r.Ranks, r.Bytes, r.Unit, cell(r.Ours),
			cell(r.OpenMPI), cell(r.MPICH), cell(r.BestFlags), r.interval(cell), r.Target, r.verdict())
	}
	writeReasons(&b, reasons)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeReasons writes the footnotes.
func writeReasons(b *strings.Builder, reasons []string) {
	if len(reasons) > 0 {
		b.WriteByte('\n')
	}
	for i, why := range reasons {
		fmt.Fprintf(b, "%d. %s\n", i+1, strings.Join(strings.Fields(why), " "))
	}
}

// interval is the ratio with its interval.
func (r *Row) interval(cell func(Value) string) string {
	if !r.Ratio.ok {
		return cell(r.Ratio)
	}
	return fmt.Sprintf("%s (%.2f..%.2f)", r.Ratio, r.Low, r.High)
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
