// Package cacheline tells the processor how memory that other cores read is going to be used: words, where
// package sync/atomic says more than is needed, and copies that no cache can hold.
//
// An atomic store of Go waits until all stores before it have been seen everywhere. Publish only
// keeps their order: it may still be under way when the program goes on and reads other words. So where a
// store must come before a load, as that of a flag before the look at who sleeps, use sync/atomic.
package cacheline
