package job

// The tree of the other hosts, by the numbers of their sites: agents start agents in it where
// they can, and exchange cards. The launcher is its root.

// fanOut is how many children a host has, and the launcher.
const fanOut = 32

// parentOf returns a site's parent, or -1 for the launcher.
func parentOf(site int) int { return site/fanOut - 1 }

// childrenOf returns the children of a site among n sites; those of the launcher for -1.
func childrenOf(site, n int) []int {
	var out []int
	for c := fanOut * (site + 1); c < min(fanOut*(site+2), n); c++ {
		out = append(out, c)
	}
	return out
}

// depthOf returns how many links lead from the root to the farthest of n sites.
func depthOf(n int) int {
	d := 0
	for site := n - 1; site >= 0; site = parentOf(site) {
		d++
	}
	return d
}
