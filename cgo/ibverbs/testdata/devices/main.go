// Devices prints what the registered provider says of devices.
package main

import (
	"fmt"

	"github.com/weft-hpc/weft/cgo/ibverbs"
	"github.com/weft-hpc/weft/rdma"
)

func main() {
	p, err := rdma.Lookup(ibverbs.Name)
	if err != nil {
		panic(err)
	}
	fmt.Println(p.Devices())
	fmt.Println(p.Open("mlx5_0"))
}
