package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
)

func tuneCommand() *cobra.Command {
	var file string
	budget := time.Second
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Measure what messages cost, and write down what collectives are chosen by",
		Long: `Measures what messages cost inside a host and between hosts, and writes it to a file: the
model by which jobs choose the algorithms of collectives, if WEFT_MODEL names it. It is
run as the ranks of a job, two on one host and one on another one for both parts:

  weftrun --host n1:2,n2:1 weft tune -o model.json
  WEFT_MODEL=model.json weftrun ./prog

Without a file the model is printed. What there are no ranks for is the default.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if budget <= 0 {
				return fmt.Errorf("a measurement that takes %v", budget)
			}
			w, err := weft.Init(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, w.Close(cmd.Context())) }()
			return tune(cmd.Context(), cmd.OutOrStdout(), w, budget, file)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "write the model to this `FILE`, on the host of rank 0")
	cmd.Flags().DurationVar(&budget, "for", budget, "how long to measure")
	return cmd
}

func tune(ctx context.Context, out io.Writer, w *weft.World, budget time.Duration, file string) error {
	if w.Comm().Size() < 2 {
		return errors.New("one rank sends nothing; run it with weftrun, as weft tune --help shows")
	}
	m, err := w.MeasureModel(ctx, budget)
	if err != nil || w.Comm().Rank() != 0 {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if _, err := collective.ParseModel(b); err != nil {
		return fmt.Errorf("what was measured cannot be used: %w", err)
	}
	if file == "" {
		_, err = out.Write(b)
		return err
	}
	return os.WriteFile(file, b, 0o644)
}
