package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// perftest runs both ends of a tool on this host and returns the column of the
// row's size. Where perftest could not calibrate its clock, which happens in virtual
// machines, it says so and prints zeros: then it runs again.
func perftest(ctx context.Context, c choice, r *row) (v float64, err error) {
	for range 8 {
		var out string
		if v, out, err = runPerftest(ctx, c, r); err == nil || !strings.Contains(out, "Correlation coefficient") {
			break
		}
	}
	return v, err
}

func runPerftest(ctx context.Context, c choice, r *row) (v float64, printed string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	args := append([]string{"-d", c.Device, "-i", strconv.Itoa(c.Port), "-x", strconv.Itoa(c.GID), "-F", "-s", strconv.FormatInt(r.block.Bytes, 10)}, r.args...)
	server := exec.CommandContext(ctx, r.tool, args...)
	var served bytes.Buffer
	server.Stdout, server.Stderr = &served, &served
	if err := server.Start(); err != nil {
		return 0, "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	out, err := client(ctx, r.tool, append(args, "127.0.0.1"), ended)
	if err != nil {
		cancel() // ends the server
		<-ended
		return 0, "", fmt.Errorf("%s %s: %w\n%s\nits server said:\n%s", r.tool, strings.Join(args, " "), err, out, served.Bytes())
	}
	if err := <-ended; err != nil {
		return 0, "", fmt.Errorf("server of %s: %w\n%s", r.tool, err, served.Bytes())
	}
	v, err = column(string(out), r.column, r.block.Bytes)
	return v, string(out), err
}

// client runs the second end, again and again until the first one listens.
func client(ctx context.Context, tool string, args []string, ended chan error) ([]byte, error) {
	for {
		out, err := exec.CommandContext(ctx, tool, args...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !bytes.Contains(out, []byte("Couldn't connect")) {
			return out, err
		}
		select {
		case err := <-ended:
			ended <- err
			return out, fmt.Errorf("its server has ended (%v)", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// column finds a column by the beginning of its title in perftest's table, in the
// line of that many bytes. Titles are separated by two blanks or more, or end with a unit in brackets.
func column(out, title string, size int64) (float64, error) {
	at := -1
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if titles, ok := strings.CutPrefix(line, "#bytes"); ok {
			at = slices.IndexFunc(split(titles), func(t string) bool { return strings.HasPrefix(t, title) })
			continue
		}
		fields := strings.Fields(line)
		if at >= 0 && len(fields) > at+1 && fields[0] == strconv.FormatInt(size, 10) {
			v, err := strconv.ParseFloat(fields[at+1], 64)
			if err == nil && v <= 0 {
				err = fmt.Errorf("it is %v", v)
			}
			if err != nil {
				return 0, fmt.Errorf("column %q: %w in:\n%s", title, err, out)
			}
			return v, nil
		}
	}
	return 0, fmt.Errorf("no column %q for %d bytes in:\n%s", title, size, out)
}

// split splits a line of titles: "#iterations    BW peak[MB/sec]    MsgRate[Mpps]".
func split(line string) []string {
	var titles []string
	for _, part := range strings.Split(strings.ReplaceAll(line, "]", "]  "), "  ") {
		if part = strings.TrimSpace(part); part != "" {
			titles = append(titles, part)
		}
	}
	return titles
}
