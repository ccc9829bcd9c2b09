// Command weft tells about machines, jobs and the library itself. Each
// sub-command has a file of its own; weft --help lists them.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	err := root().Execute()
	if err == errProblems {
		os.Exit(1) // they are on standard output
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "weft: %v\n", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "weft",
		Short:         "Tells about machines, jobs and the library itself",
		Long:          "Weft passes messages between the ranks of a parallel program.\nJobs are started with weftrun; this command tells about the rest.",
		SilenceUsage:  true,
		SilenceErrors: true, // main says them, once
	}
	cmd.AddCommand(infoCommand(), checkCommand(), tuneCommand(), benchCommand(), versionCommand())
	return cmd
}
