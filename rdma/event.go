package rdma

import "fmt"

// EventType is a kind of asynchronous event.
type EventType uint8

// Kinds of events. Which of them a device sends differs; LastWQEReached in
// particular is sent by some only.
const (
	PortError       EventType = iota + 1 // a port went down; what is in flight is retried
	PortActivated                        // and came back
	DeviceFatal                          // the device is gone: close everything
	CQError                              // a CQ overran or broke: it and its QPs are dead
	QPFatal                              // a QP broke
	QPRequestError                       // a QP got a request that makes no sense
	QPAccessError                        // a QP got a request that its memory does not allow
	CommEstablished                      // the first packet came before ReadyToSend
	LastWQEReached                       // a QP with an SRQ in the error state takes no more receives
	SRQError                             // an SRQ broke
	SRQLimitReached                      // fewer receives than SetLimit said
	GIDChange                            // a port's GID table changed
	LIDChange
	PKeyChange
	SMChange   // another subnet manager, or the same one again
	OtherEvent // one that has no name here
)

var eventTypes = [...]string{"no event", "port error", "port active", "device fatal", "CQ error", "QP fatal", "QP request error",
	"QP access error", "communication established", "last WQE reached", "SRQ error", "SRQ limit reached", "GID change", "LID change",
	"partition key change", "subnet manager change", "other event"}

func (e EventType) String() string { return name(eventTypes[:], int(e), "event") }

// Event is an asynchronous event. The provider has acknowledged it: it keeps
// nothing from being closed, and what it is about may be closed already.
type Event struct {
	Type EventType
	Port int // of events of a port
	QP   QP  // of events of a QP
	CQ   CQ
	SRQ  SRQ
}

func (e Event) String() string {
	switch {
	case e.Port != 0:
		return fmt.Sprintf("%v (port %d)", e.Type, e.Port)
	case e.QP != nil:
		return fmt.Sprintf("%v (qp 0x%06x)", e.Type, e.QP.Num())
	}
	return e.Type.String()
}
