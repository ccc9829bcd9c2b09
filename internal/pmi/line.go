package pmi

import (
	"fmt"
	"strings"
)

// maxLine bounds a line with its end. Process managers have room for 1024 bytes, some for more.
const maxLine = 64 << 10

// fields are what a line says, by name.
type fields map[string]string

// parse reads a line without its end: words "name=value" between blanks. Values have no
// blank but that of msg, which is for people and takes all words that are not of this form.
func parse(line string) (fields, error) {
	f := fields{}
	last := ""
	for word := range strings.FieldsSeq(line) {
		name, value, ok := strings.Cut(word, "=")
		if !ok && last == "msg" {
			f[last] += " " + word
			continue
		}
		if !ok || name == "" {
			return nil, fmt.Errorf("pmi: %q in %q is not name=value", word, line)
		}
		if _, twice := f[name]; twice {
			return nil, fmt.Errorf("pmi: %q says %s twice", line, name)
		}
		f[name], last = value, name
	}
	if f["cmd"] == "" {
		return nil, fmt.Errorf("pmi: %q has no cmd", line)
	}
	return f, nil
}

// format returns the line of a command, with its end. Args are names and values in turn.
func format(cmd string, args ...string) (string, error) {
	var b strings.Builder
	b.WriteString("cmd=" + cmd)
	for i := 0; i < len(args); i += 2 {
		if bad(args[i+1]) {
			return "", unsendable(cmd, args[i], args[i+1])
		}
		b.WriteString(" " + args[i] + "=" + args[i+1])
	}
	b.WriteByte('\n')
	if b.Len() > maxLine {
		return "", tooLong(cmd, b.Len())
	}
	return b.String(), nil
}

// bad tells whether a value has what cannot be sent: blanks and what is not ASCII.
func bad(value string) bool {
	return strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' })
}

func unsendable(cmd, name, value string) error {
	return fmt.Errorf("pmi: %s of %s has letters that cannot be sent: %q", name, cmd, value)
}

func tooLong(cmd string, n int) error {
	return fmt.Errorf("pmi: %s of %d bytes, the limit is %d", cmd, n, maxLine)
}
