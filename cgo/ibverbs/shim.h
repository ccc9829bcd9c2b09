// The shim between Go and libibverbs. Go sees no structure of verbs.h, only
// the flat ones below, which live in C memory, and pointers it hands back.
// So the package builds where that header is missing: see WEFT_API.
//
// Functions that return int return an errno, 0 for success, where nothing else is said. Those that
// return a pointer return NULL and set errno. None calls into Go, none waits longer than
// its verb, and all try again on EINTR.
#ifndef WEFT_SHIM_H
#define WEFT_SHIM_H

#include <stddef.h>
#include <stdint.h>

// Without the header nothing below is defined but weft_load, which says so and
// without which nothing else can be called.
#if !defined(WEFT_NO_VERBS) && defined(__has_include)
#if __has_include(<infiniband/verbs.h>)
#define WEFT_VERBS 1
#endif
#endif
#ifdef WEFT_VERBS
#define WEFT_API
#else
#define WEFT_API __attribute__((weak))
#endif

struct weft_lib;
struct ibv_context;
struct ibv_pd;
struct ibv_mr;
struct ibv_comp_channel;
struct ibv_cq;
struct ibv_srq;
struct ibv_qp;

// How loading the library went, which weft_load returns.
enum { WEFT_LOADED, WEFT_NOT_BUILT, WEFT_NO_LIBRARY, WEFT_NO_SYMBOL };

// weft_load loads the library at path, or the usual one if path is empty. text receives what
// dlopen said, or the name of the missing symbol.
int weft_load(const char *path, struct weft_lib **lib, char *text, size_t size);

// Devices.

struct weft_device {
	char name[64];
	char uverbs[64]; // of the file under /dev/infiniband
	uint64_t guid;   // of the node
	int iwarp;
};

struct weft_limits {
	char firmware[64];
	int ports, qps, qp_wrs, sges, cqs, cqes, srqs, srq_wrs, mrs, reads, atomics;
	uint64_t mr_bytes;
};

struct weft_port {
	int state, link_layer, max_mtu, active_mtu, lid, sm_lid, gids, pkeys, width, speed, grh;
	uint32_t max_message;
};

struct weft_gid {
	uint8_t gid[16];
	uint32_t index, port;
	uint32_t type; // 0 InfiniBand, 1 RoCE v1, 2 RoCE v2
	uint32_t ifindex;
};

struct weft_event {
	int type; // the number of verbs
	int port; // of events of a port
	uint64_t id; // of the queue, as it was given on creation; 0 without one
};

// weft_list writes up to max devices, and in count how many there are.
WEFT_API int weft_list(struct weft_lib *lib, struct weft_device *out, int max, int *count);
WEFT_API struct ibv_context *weft_open(struct weft_lib *lib, const char *name, struct weft_limits *limits);
WEFT_API int weft_close(struct weft_lib *lib, struct ibv_context *ctx);
// weft_event_fd is the descriptor of weft_next_event.
WEFT_API int weft_event_fd(struct ibv_context *ctx);
WEFT_API int weft_query_port(struct weft_lib *lib, struct ibv_context *ctx, int port, struct weft_port *out);
WEFT_API int weft_query_pkey(struct weft_lib *lib, struct ibv_context *ctx, int port, int index, uint16_t *key);
// weft_query_gids reads the tables of all ports, without empty entries; max is the sum of their lengths. EOPNOTSUPP
// where the library is too old.
WEFT_API int weft_query_gids(struct weft_lib *lib, struct ibv_context *ctx, struct weft_gid *out, int max, int *count);
// weft_next_event takes and acknowledges an event; EAGAIN when there is none.
WEFT_API int weft_next_event(struct weft_lib *lib, struct ibv_context *ctx, struct weft_event *out);

// Objects. id comes back in weft_event.id, and is not 0.

WEFT_API struct ibv_pd *weft_alloc_pd(struct weft_lib *lib, struct ibv_context *ctx);
WEFT_API int weft_dealloc_pd(struct weft_lib *lib, struct ibv_pd *pd);
// weft_try_address makes and destroys an address of the port's own GID.
WEFT_API int weft_try_address(struct weft_lib *lib, struct ibv_pd *pd, int port, int index, const uint8_t *gid);
WEFT_API struct ibv_mr *weft_reg_mr(struct weft_lib *lib, struct ibv_pd *pd, uintptr_t addr, size_t length, int access, uint32_t *lkey, uint32_t *rkey);
WEFT_API int weft_dereg_mr(struct weft_lib *lib, struct ibv_mr *mr);

WEFT_API struct ibv_comp_channel *weft_create_channel(struct weft_lib *lib, struct ibv_context *ctx, int *fd);
WEFT_API int weft_destroy_channel(struct weft_lib *lib, struct ibv_comp_channel *channel);
// weft_next_notification returns the id of a CQ that notified; EAGAIN when there is none.
WEFT_API int weft_next_notification(struct weft_lib *lib, struct ibv_comp_channel *channel, uint64_t *id);
WEFT_API struct ibv_cq *weft_create_cq(struct weft_lib *lib, struct ibv_context *ctx, int size, uint64_t id, struct ibv_comp_channel *channel, int *granted);
// weft_destroy_cq acknowledges unacked notifications first: it would wait for that for ever.
WEFT_API int weft_destroy_cq(struct weft_lib *lib, struct ibv_cq *cq, unsigned unacked);
WEFT_API void weft_ack(struct weft_lib *lib, struct ibv_cq *cq, unsigned n);
WEFT_API int weft_arm(struct ibv_cq *cq, int solicited_only);

WEFT_API struct ibv_srq *weft_create_srq(struct weft_lib *lib, struct ibv_pd *pd, uint64_t id, int *wrs, int *sges);
WEFT_API int weft_limit_srq(struct weft_lib *lib, struct ibv_srq *srq, int limit);
WEFT_API int weft_destroy_srq(struct weft_lib *lib, struct ibv_srq *srq);

struct weft_caps {
	int sends, recvs, send_sges, recv_sges, inline_bytes; // asked for, then granted
};

struct weft_rtr {
	uint8_t dgid[16];
	uint32_t dest_qpn, psn, flow_label;
	int port, sgid_index, global, mtu, reads, rnr_timer, hop_limit, traffic_class, service_level, dlid;
};

WEFT_API struct ibv_qp *weft_create_qp(struct weft_lib *lib, struct ibv_pd *pd, uint64_t id, struct ibv_cq *send, struct ibv_cq *recv,
				       struct ibv_srq *srq, struct weft_caps *caps, uint32_t *num);
WEFT_API int weft_destroy_qp(struct weft_lib *lib, struct ibv_qp *qp);
WEFT_API int weft_init_qp(struct weft_lib *lib, struct ibv_qp *qp, int port, int pkey_index, int access);
WEFT_API int weft_rtr_qp(struct weft_lib *lib, struct ibv_qp *qp, const struct weft_rtr *a);
WEFT_API int weft_rts_qp(struct weft_lib *lib, struct ibv_qp *qp, uint32_t psn, int reads, int timeout, int retries, int rnr_retries);
WEFT_API int weft_fail_qp(struct weft_lib *lib, struct ibv_qp *qp);
WEFT_API int weft_reset_qp(struct weft_lib *lib, struct ibv_qp *qp);
WEFT_API int weft_query_qp(struct weft_lib *lib, struct ibv_qp *qp, int *state);

// Work requests. Go fills a batch in C memory and posts it with one call.

// An empty CQ is asked WEFT_TRIES times in one call: the call takes longer than they do.
enum { WEFT_BATCH = 32, WEFT_POLL = 32, WEFT_TRIES = 4 };

struct weft_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

// Flags of a weft_send; those of a rdma.SendWR.
enum { WEFT_SIGNALED = 1, WEFT_FENCE = 2, WEFT_SOLICITED = 4 };

struct weft_send {
	uint64_t id, remote_addr;
	uint64_t operand[2]; // what to add; or what to compare with and what to swap in
	uint32_t rkey, imm;
	uint32_t inline_bytes; // in the batch's inline memory; 0 for segments
	uint16_t sges;
	uint8_t op, flags;
};

struct weft_recv {
	uint64_t id;
	uint64_t sges;
};

// A weft_batch belongs to one queue. It is one allocation: the arrays follow it. Request i has the
// segments from i*max_sges on, and the inline bytes from i*max_inline on.
struct weft_batch {
	uintptr_t self;
	uint32_t posted; // of the last call, how many
	int32_t error;	 // and its errno
	struct ibv_qp *qp;
	struct ibv_srq *srq; // of receives; then without qp
	uint32_t max_sges, max_inline;
	struct weft_send *sends; // or recvs
	struct weft_recv *recvs;
	struct weft_sge *sges;
	uint8_t *inlines;
};

WEFT_API struct weft_batch *weft_new_batch(struct ibv_qp *qp, struct ibv_srq *srq, int receive, int max_sges, int max_inline);
WEFT_API void weft_free_batch(struct weft_batch *b);
// These take the batch's self, and answer in its posted and error. What is on the hot path takes
// no pointer, which cgo would look up, and returns nothing, for which it would look for the stack
// again: together a fifth of a call.
WEFT_API void weft_post_send(uintptr_t batch, int n);
WEFT_API void weft_post_recv(uintptr_t batch, int n);

// Completions.

struct weft_wc {
	uint64_t id;
	uint32_t qpn, vendor, imm, bytes;
	uint8_t status, op, flags; // as in rdma.WC
	uint8_t unused[5];
};

struct weft_polled {
	uintptr_t self;
	struct ibv_cq *cq;
	int32_t got;
	struct weft_wc wc[WEFT_POLL];
};

WEFT_API struct weft_polled *weft_new_polled(struct ibv_cq *cq);
WEFT_API void weft_free_polled(struct weft_polled *p);
// weft_poll takes a polled's self. It moves up to n completions to its wc, and answers in got: their number, or
// less than 0.
WEFT_API void weft_poll(uintptr_t polled, int n);

// The thread: see thread.c. A ring is what it shares with Go. Positions only grow;
// the entry of position i is wc[i % size].
struct weft_ring {
	// written by the thread
	uint64_t head;	    // position behind the last completion
	int32_t poll_error; // what a poll returned that failed
	uint32_t arm_error; // errno of an arming that failed
	uint8_t pad1[48];
	// written by Go
	uint64_t tail;	   // position of the next completion to take
	uint8_t pad2[56];
	// written by both
	uint64_t armed;	   // 0, or 1 + 2 * the position up to which nothing notifies
	uint32_t notified; // a notification waits to be taken
	uint32_t stalled;  // the thread waits for room: ring its bell
	uint8_t pad3[48];
	uint64_t size;	   // a power of two
	uint8_t pad4[56];
	struct weft_wc wc[];
};

struct weft_thread;
struct weft_owned; // a CQ that the thread owns

WEFT_API struct weft_thread *weft_start_thread(struct weft_lib *lib, struct ibv_context *ctx, int64_t spin_ns, int *bell);
// weft_stop_thread waits for the end of the thread, which owns no CQ any more.
WEFT_API int weft_stop_thread(struct weft_thread *t);
// weft_own_cq makes a CQ and its ring and hands both to the thread. Notifications are written to
// notify_fd, unless it is -1.
WEFT_API struct weft_owned *weft_own_cq(struct weft_thread *t, int size, uint64_t id, int notify_fd, struct ibv_cq **cq, struct weft_ring **ring,
					int *granted);
// weft_release_cq destroys the CQ. What is left is the ring, which weft_free_owned frees. If it fails the thread keeps the
// CQ, unless the device is lost: if the caller says so, or the errno is EIO.
WEFT_API int weft_release_cq(struct weft_thread *t, struct weft_owned *q, int lost);
WEFT_API void weft_free_owned(struct weft_owned *q);
// weft_new_bell makes an event descriptor, or returns -1.
WEFT_API int weft_new_bell(int semaphore);

#endif
