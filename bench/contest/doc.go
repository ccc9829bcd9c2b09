// Package contest times programs against each other fairly on a machine that
// is not quiet and whose processors move.
//
// A contestant is a set of rank processes that a launcher starts once (a
// Session). It then runs short blocks on demand, so the contestants of one test
// take turns in random order, and a round holds one block of each (Rounds). A
// contestant that waits for its turn sleeps in a read of its own command FIFO,
// in all of its ranks: it must not cost the others anything, and Session.Idle
// says whether it did.
//
// The protocol is in bench/peers/serve.h; bench/osu speaks it in Go. This
// package does not know what a test means, and draws no conclusions: that is
// package report's.
package contest
