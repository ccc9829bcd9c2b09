package collective_test

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/collective/collectivetest"
)

// Five ranks add up their numbers, by the algorithm that the package selects and
// by one that is named.
func Example() {
	add := func(inout, in []byte) {
		for i := 0; i < len(inout); i += 4 {
			sum := binary.LittleEndian.Uint32(inout[i:]) + binary.LittleEndian.Uint32(in[i:])
			binary.LittleEndian.PutUint32(inout[i:], sum)
		}
	}
	op := collective.Op{Size: 4, Commutative: true, Left: add, Right: add}
	fmt.Println(collective.Algorithms(collective.KindAllreduce))
	ring, err := collective.Lookup(collective.KindAllreduce, "ring")
	if err != nil {
		fmt.Println(err)
		return
	}

	var mu sync.Mutex
	sums := map[uint32]int{}
	errs := collectivetest.MemWorld(-1)(5, func(p collective.Peer) error {
		buf := binary.LittleEndian.AppendUint32(nil, uint32(p.Rank()))
		if err := collective.Allreduce(p, buf, buf, op); err != nil {
			return err
		}
		if err := ring.Run(p, collective.Args{Send: buf, Recv: buf, Op: op}); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		sums[binary.LittleEndian.Uint32(buf)]++
		return nil
	})
	fmt.Println(sums, errs)
	fmt.Printf("%+v\n", ring.Cost(collective.Shape{Ranks: 5, Bytes: 4, Elem: 4}))
	// Output:
	// [doubling halving ring leaders leaders-halving slices gather exchange]
	// map[50:5] [<nil> <nil> <nil> <nil> <nil>]
	// {Steps:8 Messages:40 Bytes:32 Between:0}
}
