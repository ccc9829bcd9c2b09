// Command mom runs one PBS job on ci/cluster: it is the MoM of the first host, and
// starts tasks on the others as their MoMs would. It ends with the job's script, and then
// kills what is left of the job. SIGTERM is qdel.
//
//	ci/cluster/on n1 mom -nodes n1,n1,n2 -dir DIR weftrun ./prog
//
// DIR gets the node file and the job's output.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/tm/tmtest"
)

func main() {
	nodes := flag.String("nodes", "", "lines of the node file, with commas between")
	dir := flag.String("dir", "", "for the node file, nodes, and the output, job.out")
	on := flag.String("on", "ci/cluster/on", "runs a command on a host")
	flag.Parse()
	code, err := run(strings.Split(*nodes, ","), *dir, *on, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mom:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(nodes []string, dir, on string, script []string) (int, error) {
	on, err := filepath.Abs(on)
	if err != nil {
		return 0, err
	}
	cfg := tmtest.Config{Nodes: nodes, File: filepath.Join(dir, "nodes"), Home: os.Getenv("HOME"), On: func(host string, argv []string) []string {
		return append([]string{"/usr/bin/env", "WEFT_CLUSTER=" + os.Getenv("WEFT_CLUSTER"), on, host}, argv...)
	}}
	if err := os.WriteFile(cfg.File, []byte(strings.Join(nodes, "\n")+"\n"), 0o644); err != nil {
		return 0, err
	}
	if cfg.Output, err = os.OpenFile(filepath.Join(dir, "job.out"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o644); err != nil {
		return 0, err
	}
	defer cfg.Output.Close()
	m, err := tmtest.Start(cfg)
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		for range signals {
			m.Delete(10 * time.Second)
		}
	}()
	status, err := m.Script(script, nil)
	if status >= 256 {
		status -= 128
	}
	if errClose := m.Close(); err == nil {
		err = errClose
	}
	return status, err
}
