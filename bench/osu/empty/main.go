// Command empty is the Weft program that does nothing: bench/compare measures
// what its start and end cost.
package main

import (
	"context"

	"github.com/weft-hpc/weft"
)

func main() {
	weft.Main(func(context.Context, *weft.Comm) error { return nil })
}
