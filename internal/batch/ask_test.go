package batch

import (
	"context"
	"errors"
	"testing"
)

func TestAsking(t *testing.T) {
	src := Asking(t.Context())
	if got, err := src.Run("sh", "-c", "echo 5:00"); got != "5:00\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := src.Run("sh", "-c", "exit 3"); err == nil {
		t.Error("a command that fails was believed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Asking(ctx).Run("sleep", "1000"); !errors.Is(err, context.Canceled) {
		t.Errorf("asked for a job that is over: %v", err)
	}
}
