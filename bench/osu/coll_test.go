package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/weft-hpc/weft"
)

// Every collective gives the right result on several numbers of ranks, in both forms.
func TestCollectives(t *testing.T) {
	for _, ranks := range []int{2, 3, 4} {
		var commands, want []string
		for name, op := range collectives {
			forms := []string{name}
			if op.start != nil {
				forms = append(forms, "i"+name)
			}
			for _, form := range forms {
				n := 8 * ranks * 25
				commands = append(commands, fmt.Sprintf("%s %d 3 0 1 check arena", form, n), fmt.Sprintf("%s %d 3 1 1 osu slice", form, n))
				want = append(want, "ok 0", "ok ")
			}
		}
		serve(t, ranks, commands, want)
	}
}

// What does not do its work, or does it on the contents of the call before, is
// found out.
func TestVerifySeesAWrongResult(t *testing.T) {
	err := weft.Local(t.Context(), 2, func(ctx context.Context, world *weft.Comm) error {
		r := &rank{ctx: ctx, c: world, scope: world.Scope(ctx), kinds: map[string]*buffers{}, sum: weft.Sum[float64]()}
		if err := r.allocate(); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(collectives)) {
			if err := r.fool(t, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fool verifies the collective itself, and others that do it wrong.
func (r *rank) fool(t *testing.T, name string) error {
	const n = 64
	op, b, me := collectives[name], r.kinds["slice"], r.c.Rank()
	given := op.gives(n, r.c.Size())
	hasResult := !op.atRoot || me == 0
	right := func() error { return op.call(r, b, n) }
	nothing := func() error { return nil }
	lastWrong := func() error {
		err := right()
		b.recv[given-1] ^= 1
		b.recvNum[given-1]++
		return err
	}
	for _, tc := range []struct {
		what string
		once func() error
		ok   func(bad int) bool
	}{
		{"right", right, func(bad int) bool { return bad == 0 }},
		// The root of a Bcast has the result already.
		{"nothing", nothing, func(bad int) bool { return bad > given/2 || op.sendIsInOut && me == 0 || !hasResult }},
		{"last wrong", lastWrong, func(bad int) bool { return bad == 1 || !hasResult }},
	} {
		bad, err := r.verify(op, b, n, 1, tc.once)
		if err != nil {
			return err
		}
		if !tc.ok(bad) {
			t.Errorf("%s, %s, rank %d: %d of %d elements wrong", name, tc.what, me, bad, given)
		}
	}
	return nil
}
