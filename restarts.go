package weft

import (
	"os"
	"strconv"

	"github.com/weft-hpc/weft/internal/control"
)

// Restarts returns how often weftrun --restart has started this job again after a failure: 0 in
// the first try, and without weftrun. A program that saves its state now and then starts from
// what it saved when this is more than 0. Programs that are not Weft's find it in WEFT_RESTART.
func Restarts() int {
	n, err := strconv.Atoi(os.Getenv(control.VarRestart))
	if err != nil {
		return 0
	}
	return max(n, 0)
}
