package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Where the output of ranks goes with --output: to files whose names a pattern gives.

var outputWords = []string{"{rank}", "{host}", "{jobid}", "{stream}"}

// OutputPattern returns the pattern that the argument of --output means: itself, or for a
// directory the files RANK.out and RANK.err in it.
func OutputPattern(v string) (string, error) {
	if v == "" {
		return "", errors.New("the directory has no name")
	}
	if !strings.ContainsAny(v, "{}") {
		return filepath.Join(v, "{rank}.{stream}"), nil
	}
	rest := v
	for _, w := range outputWords {
		rest = strings.ReplaceAll(rest, w, "")
	}
	switch {
	case strings.ContainsAny(rest, "{}"):
		return "", fmt.Errorf("%q has braces that are none of %s", v, strings.Join(outputWords, ", "))
	case !strings.Contains(v, "{rank}"):
		return "", fmt.Errorf("%q has no {rank}, so all ranks would write to one file", v)
	case strings.HasSuffix(v, "/"):
		return "", fmt.Errorf("%q is a directory for each rank, and names no file in it", v)
	}
	return v, nil
}

// outputFile returns the name of the file for one stream of a rank.
func outputFile(pattern string, rank int, host, stream string) string {
	return strings.NewReplacer("{rank}", strconv.Itoa(rank), "{host}", host, "{stream}", stream).Replace(pattern)
}

// nameOutput puts the job's number into the pattern, and refuses one that gives two ranks
// the same file, as {host}{rank} does for rank 12 on n1 and rank 2 on n11.
func (p *Plan) nameOutput() error {
	pattern := p.Spec.Output
	if pattern == "" {
		return nil
	}
	id := p.Job
	if p.Batch != nil && p.Batch.System != "" {
		if id = p.Batch.ID; p.Batch.Task != "" {
			id += "." + p.Batch.Task
		}
	}
	pattern = strings.ReplaceAll(pattern, "{jobid}", strings.ReplaceAll(id, "/", "_"))
	p.Spec.Output = pattern // a restart of the job keeps its number
	if !strings.Contains(pattern, "{host}") && strings.Count(pattern, "{rank}") == 1 {
		return nil // each rank's name differs, in this place
	}
	owner := make(map[string]int, p.Size)
	name := func(host string, ranks []int) error {
		for _, rank := range ranks {
			for _, stream := range []string{"out", "err"} {
				file := filepath.Clean(outputFile(pattern, rank, host, stream))
				if other, ok := owner[file]; ok && other != rank {
					return failf(ExitUsage, "--output: ranks %d and %d would both write to %s; put something between the words in braces", other, rank, file)
				}
				owner[file] = rank
			}
		}
		return nil
	}
	err := name(p.Host, p.Local)
	for _, s := range p.Others {
		if err == nil {
			err = name(s.Name, s.Ranks)
		}
	}
	return err
}

// outputDirs makes the directories of this host's files.
func (p *Plan) outputDirs() error {
	if p.Spec.Output == "" {
		return nil
	}
	made := make(map[string]bool)
	for _, rank := range p.Local {
		for _, stream := range []string{"out", "err"} {
			dir := filepath.Dir(outputFile(p.Spec.Output, rank, p.Host, stream))
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return failf(ExitSetup, "--output: %w", err)
			}
		}
	}
	return nil
}

// openOutput opens the file for a stream of a rank. O_APPEND, so that a program and its
// children, or the two streams in one file, do not overwrite each other.
func (p *Plan) openOutput(rank int, stream string) (*os.File, error) {
	name := outputFile(p.Spec.Output, rank, p.Host, stream)
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if p.Spec.Try == 0 && (stream == "out" || name != outputFile(p.Spec.Output, rank, p.Host, "out")) {
		flags |= os.O_TRUNC // what an earlier job left there, but not an earlier try of this one; standard output is opened first
	}
	return os.OpenFile(name, flags, 0o666)
}
