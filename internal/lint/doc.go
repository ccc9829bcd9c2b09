// Package lint holds this repository's own rules as tests: which layer may
// import which, where unsafe code and C may live, how long a file may grow, what
// must be documented. Each failure says which file broke which rule, and what to
// do about it.
//
// The rules are functions from a file tree to the list of what breaks them, so
// that the tests can also show, on small trees made up to be wrong, that every
// rule does fail. layers.go holds the layering as data; it is policy, and a
// build is not repaired by changing it without a word.
//
// The package contains no code for other packages: `go test ./internal/lint`
// is its only use.
package lint
