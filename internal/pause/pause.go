// Package pause tells the processor that the program spins. A PAUSE takes some
// tens of nanoseconds, saves power, leaves the execution units to the other
// hyper-thread and, in a virtual machine, lets the hypervisor notice.
//
// It does not wait for anything and does not give up the processor: a spin must
// be bounded by its caller.
package pause
