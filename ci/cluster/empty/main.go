// Command empty joins its job and leaves it: bench.sh times that.
package main

import (
	"context"

	"github.com/weft-hpc/weft"
)

func main() {
	weft.Main(func(context.Context, *weft.Comm) error { return nil })
}
