package verbs

import (
	"errors"

	"github.com/weft-hpc/weft/rdma"
)

// slab is registered memory for receives.
type slab struct {
	mem []byte
	mr  rdma.MR
}

// slot is one receive of rail 0.
//
//	posted -> taken by a message: its completion is polled -> the frame is delivered, or held -> in Transport.refill -> posted
type slot struct {
	mem  []byte
	lkey uint32
	from *conn // whose message it held, until it is posted again; nil when that one does not pay for it
}

const noSlot = -1

// refillBatch is how many receives are posted in one call.
const refillBatch = 64

// openReceives makes and posts the receives to start with: fewer than asked for when
// they cannot be locked in memory.
func (t *Transport) openReceives() error {
	u := &t.tune
	want := u.receives
	for {
		err := t.grow(u.receives)
		if err == nil {
			break
		}
		if u.receives <= leastReceives || !errors.Is(err, rdma.ErrMemlock) && !errors.Is(err, rdma.ErrResources) {
			return err
		}
		if u.receives == want {
			t.noticeOnce(&t.told.receives, "verbs: rank %d starts with fewer receives than %d of %d bytes: %v", t.cfg.Rank, want, u.segment, err)
		}
		u.receives = max(u.receives/2, leastReceives)
		u.exposures = min(u.exposures, u.receives/2)
	}
	t.reserved = u.exposures
	for _, r := range t.rails[1:] {
		for range u.exposures {
			if _, err := r.srq.PostRecv([]rdma.RecvWR{{ID: recvBit}}); err != nil {
				return err
			}
		}
		r.cqFree -= u.exposures
	}
	return t.post(t.refill)
}

const leastReceives = 32

// grow makes n more receives; they are posted with the next refill.
func (t *Transport) grow(n int) error {
	r := t.rails[0]
	if len(t.slots)+n > r.srq.MaxWRs() || n > r.cqFree {
		return &rdma.Error{Op: rdma.OpPostRecv, Device: r.info.Name, Kind: rdma.ErrQueueFull, What: "the shared receive queue is full"}
	}
	mem, err := mapMemory(n * t.tune.segment)
	if err != nil {
		return err
	}
	mr, err := r.pd.RegisterMemory(mem, rdma.LocalWrite)
	if err != nil {
		return errors.Join(err, unmapMemory(mem))
	}
	r.cqFree -= n
	t.slabs = append(t.slabs, slab{mem, mr})
	for i := range n {
		t.slots = append(t.slots, slot{mem: mem[i*t.tune.segment : (i+1)*t.tune.segment], lkey: mr.LKey()})
		t.refill = append(t.refill, int32(len(t.slots)-1))
	}
	return nil
}

// grant reserves receives for a new peer and returns how many it may use at once.
// No two peers share a reserved one, so nobody ever finds none.
func (t *Transport) grant() int {
	u := &t.tune
	free := len(t.slots) - t.reserved
	few := min(max(t.cfg.Size-1, 1), 4) // the more each peer may use, the less often it must be told
	w := min(max((free-creditSlots)/few, u.minWindow), u.window)
	if lack := w + creditSlots - free; lack > 0 {
		n := max(lack, min(16, u.receives))
		err := t.grow(n)
		if err != nil && n > lack {
			err = t.grow(lack)
		}
		if err != nil {
			t.noticeOnce(&t.told.grow, "verbs: rank %d has %d receives for all its peers, and no more can be made: a flood of messages may have to be repeated: %v",
				t.cfg.Rank, len(t.slots), err)
		}
	}
	t.reserved += w + creditSlots
	return w
}

// recycle marks a receive for posting. from pays for it, and gets its credit back.
func (t *Transport) recycle(id int32, from *conn) {
	t.slots[id].from = from
	t.refill = append(t.refill, id)
	if from == nil { // what it came with costs no credit: more of it may be under way
		t.hurry = true
		return
	}
	if from.unposted++; from.debt()+from.unposted >= (from.window+1)/2 {
		t.hurry = true
	}
}

// post posts receives, and then gives their credits back.
func (t *Transport) post(ids []int32) error {
	for len(ids) > 0 {
		n := min(len(ids), refillBatch)
		for i, id := range ids[:n] {
			s := &t.slots[id]
			t.recvSGEs[i] = rdma.SGE{Addr: addressOf(s.mem), Length: uint32(len(s.mem)), LKey: s.lkey}
			t.recvWRs[i] = rdma.RecvWR{ID: recvBit | uint64(id), SGL: t.recvSGEs[i : i+1 : i+1]}
		}
		done, err := t.rails[0].srq.PostRecv(t.recvWRs[:n])
		for _, id := range ids[:done] {
			if c := t.slots[id].from; c != nil {
				t.slots[id].from = nil
				c.unposted--
				t.owe(c)
			}
		}
		if err != nil {
			return err
		}
		ids = ids[n:]
	}
	t.refill, t.hurry = t.refill[:0], false
	return nil
}

// openSends makes the send buffers, and behind them the cells for results of atomics:
// fewer than asked for when they cannot be locked in memory.
func (t *Transport) openSends() error {
	u := &t.tune
	want := u.sends
	for {
		err := t.tryOpenSends()
		if err == nil {
			break
		}
		if u.sends <= leastSends || !errors.Is(err, rdma.ErrMemlock) && !errors.Is(err, rdma.ErrResources) {
			return err
		}
		if u.sends == want {
			t.noticeOnce(&t.told.sends, "verbs: rank %d starts with fewer send buffers than %d of %d bytes: %v", t.cfg.Rank, want, u.segment, err)
		}
		u.sends = max(u.sends/2, leastSends)
	}
	for i := u.sends - 1; i >= 0; i-- {
		t.freeSends = append(t.freeSends, int32(i))
	}
	for i := cellCount - 1; i >= 0; i-- {
		t.freeCells = append(t.freeCells, int32(i))
	}
	return nil
}

const (
	leastSends = 8
	cellSize   = 8
	cellCount  = 512
)

func (t *Transport) tryOpenSends() (err error) {
	if t.sendMem, err = mapMemory(t.tune.sends*t.tune.segment + cellCount*cellSize); err != nil {
		return err
	}
	for _, r := range t.rails {
		if r.pool, err = r.pd.RegisterMemory(t.sendMem, rdma.LocalWrite); err != nil {
			for _, r := range t.rails {
				if r.pool != nil {
					err = errors.Join(err, r.pool.Close())
					r.pool = nil
				}
			}
			err = errors.Join(err, unmapMemory(t.sendMem))
			t.sendMem = nil
			return err
		}
	}
	return nil
}

// sendBuffer is the memory of a send buffer.
func (t *Transport) sendBuffer(id int32) []byte {
	n := t.tune.segment
	return t.sendMem[int(id)*n : (int(id)+1)*n]
}

// cell is the memory of an atomic's result.
func (t *Transport) cell(id int32) []byte {
	off := t.tune.sends*t.tune.segment + int(id)*cellSize
	return t.sendMem[off : off+cellSize]
}

// takeSend returns a free send buffer, or noSlot.
func (t *Transport) takeSend() int32 { return take(&t.freeSends) }

func take(free *[]int32) int32 {
	n := len(*free)
	if n == 0 {
		return noSlot
	}
	id := (*free)[n-1]
	*free = (*free)[:n-1]
	return id
}
