package pmi

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Version 2 has frames instead of lines: six characters with a decimal length, and a body of that many bytes, in which each
// "name=value" ends with a semicolon. One in a value is written twice.

const headSize = 6

// parseFrame reads the body of a frame.
func parseFrame(body string) (fields, error) {
	f := fields{}
	for rest := body; rest != ""; {
		name, after, ok := strings.Cut(rest, "=")
		if !ok || name == "" || strings.Contains(name, ";") {
			return nil, fmt.Errorf("pmi: %q in %q is not name=value;", rest, body)
		}
		var value strings.Builder
		for {
			part, next, _ := strings.Cut(after, ";")
			value.WriteString(part)
			after = next
			if !strings.HasPrefix(after, ";") {
				break
			}
			value.WriteByte(';')
			after = after[1:]
		}
		if _, twice := f[name]; twice {
			return nil, fmt.Errorf("pmi: %q says %s twice", body, name)
		}
		f[name], rest = value.String(), after
	}
	if f["cmd"] == "" {
		return nil, fmt.Errorf("pmi: %q has no cmd", body)
	}
	return f, nil
}

// formatFrame returns the frame of a command. Args are names and values in turn.
func formatFrame(cmd string, args ...string) (string, error) {
	var b strings.Builder
	b.WriteString("cmd=" + cmd + ";")
	for i := 0; i < len(args); i += 2 {
		if bad(args[i+1]) {
			return "", unsendable(cmd, args[i], args[i+1])
		}
		b.WriteString(args[i] + "=" + strings.ReplaceAll(args[i+1], ";", ";;") + ";")
	}
	if b.Len() > maxLine {
		return "", tooLong(cmd, b.Len())
	}
	return fmt.Sprintf("%*d%s", headSize, b.Len(), b.String()), nil
}

// readFrame reads a frame, and returns its body.
func readFrame(in io.Reader) (string, error) {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(in, head); err != nil {
		return "", err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(head)))
	if err != nil || n < 0 || n > maxLine {
		return "", fmt.Errorf("%q is not the length of a frame", head)
	}
	body := make([]byte, n)
	_, err = io.ReadFull(in, body)
	return string(body), err
}
