package direct

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/topo"
)

// card is what a rank tells rank 0 about itself.
type card struct {
	Name  string `cbor:"1,keyasint"` // of the host, for people
	Host  string `cbor:"2,keyasint"` // the same for ranks that can share memory
	CPUs  []int  `cbor:"3,keyasint"`
	Arena int64  `cbor:"4,keyasint"` // bytes that all ranks of the host may share
}

// layout is what rank 0 tells a rank before its line begins.
type layout struct {
	Local  []int  `cbor:"1,keyasint"` // ranks of its host
	Arena  int64  `cbor:"2,keyasint"` // of each
	Failed string `cbor:"3,keyasint,omitempty"`
}

func (r *Rank) card() (card, error) {
	if r.sys.host != nil {
		return r.sys.host()
	}
	name, err := os.Hostname()
	if err != nil {
		return card{}, fmt.Errorf("the name of this host: %w", err)
	}
	c := card{Name: name}
	// One kernel, and one network namespace, in which the segment is handed on.
	boot, err := topo.System.Text("proc/sys/kernel/random/boot_id")
	if err != nil {
		return card{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return card{}, fmt.Errorf("/proc/self/ns/net: %w", err)
	}
	c.Host = fmt.Sprintf("%s %s %d:%d", name, boot, st.Dev, st.Ino)
	if c.CPUs, err = topo.Allowed(); err != nil {
		return card{}, err
	}
	total, _, err := topo.System.Memory()
	c.Arena = total / 2
	return c, err
}

// check makes sure of what came over the wire.
func (c *card) check() error {
	if c.Name == "" || c.Host == "" || len(c.Name)+len(c.Host) > 4<<10 || len(c.CPUs) == 0 || len(c.CPUs) > 1<<16 || c.Arena < 0 {
		return errors.New("it says nonsense about its host")
	}
	return nil
}

// hosts puts ranks together that can share memory.
func hosts(cards []*card) [][]int {
	var all [][]int
	at := make(map[string]int)
	for rank, c := range cards {
		i, ok := at[c.Host]
		if !ok {
			i = len(all)
			at[c.Host] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], rank)
	}
	return all
}

// crowded tells whether ranks of one host must share processors.
func crowded(cards []*card, local []int) bool {
	cpus := make(map[int]bool)
	for _, rank := range local {
		for _, cpu := range cards[rank].CPUs {
			cpus[cpu] = true
		}
	}
	return len(cpus) < len(local)
}

// addresses returns where rank 0 listens, and what the others dial.
func addresses(oneHost bool) (listen string, dial []string, err error) {
	if oneHost {
		return "127.0.0.1:0", []string{"127.0.0.1"}, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", nil, fmt.Errorf("the addresses of this host: %w", err)
	}
	var v6 []string
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			dial = append(dial, n.IP.String())
		default:
			v6 = append(v6, n.IP.String())
		}
	}
	dial = append(dial, v6...)
	// Last: on another host somebody else answers there, without the secret.
	return ":0", append(dial, "127.0.0.1"), nil
}

func withPort(addrs []string, port int) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, net.JoinHostPort(a, strconv.Itoa(port)))
	}
	return out
}

// job describes what the ranks of a host are told alike.
func (j *judge) job(local []int) control.Job {
	return control.Job{Name: j.inv.Job, Size: j.size, Host: j.cards[local[0]].Name, LocalRanks: slices.Clone(local), Layout: j.ranks,
		Arena: j.cards[local[0]].Arena / int64(len(local)), Oversubscribed: crowded(j.cards, local), Secret: j.inv.Secret}
}
