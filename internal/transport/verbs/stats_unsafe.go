package verbs

import "unsafe"

// Stats are counters of one rank's transport.
type Stats struct {
	Connections   uint64 // that were made
	Retries       uint64 // attempts to connect that were repeated
	Stale         uint64 // greetings of attempts that were over
	Messages      uint64 // sent with a receive to take them
	BulkBytes     uint64 // handed to SendBulk
	CopiedOut     uint64 // bytes of payloads that were copied to send buffers
	CopiedIn      uint64 // and from receives
	Writes        uint64 // RDMA writes of payloads and Puts
	WrittenBytes  uint64
	Reads         uint64 // RDMA READs
	Atomics       uint64
	Registrations uint64 // of memory for one operation
	Fallbacks     uint64 // registrations that failed, so that the memory was copied
	KeepAlives    uint64

	Receives     int // buffers for receives, all peers together
	ReceiveBytes int // their memory
	SendBytes    int // memory of send buffers
	Peers        int // connected
	PeerBytes    int // Go memory of all connections, queue pairs of the device not included
}

// Stats returns the counters. It is for whoever may call Poll.
func (t *Transport) Stats() Stats {
	s := t.stats
	s.Receives, s.ReceiveBytes, s.SendBytes = len(t.slots), len(t.slots)*t.tune.segment, len(t.sendMem)
	for _, c := range t.conns {
		if c == nil {
			continue
		}
		if c.state == connUp {
			s.Peers++
		}
		s.PeerBytes += int(unsafe.Sizeof(*c)) + cap(c.held)*int(unsafe.Sizeof(heldMessage{})) + cap(c.keys)*int(unsafe.Sizeof(railKeys{}))
		for _, e := range c.all() {
			s.PeerBytes += int(unsafe.Sizeof(*e)) + cap(e.ring)*int(unsafe.Sizeof(work{}))
		}
	}
	return s
}
