//go:build linux && cgo

// The hot path: posting and polling, through the operations of the context.

#include "shim.h"

#ifdef WEFT_VERBS

#include "verbs.h"

#include <stdlib.h>

static size_t round_up(size_t n) { return (n + 63) & ~(size_t)63; }

struct weft_batch *weft_new_batch(struct ibv_qp *qp, struct ibv_srq *srq, int receive, int max_sges, int max_inline)
{
	size_t head = round_up(sizeof(struct weft_batch));
	size_t wrs = round_up(WEFT_BATCH * (receive ? sizeof(struct weft_recv) : sizeof(struct weft_send)));
	size_t sges = round_up(WEFT_BATCH * (size_t)max_sges * sizeof(struct weft_sge));
	char *p = aligned_alloc(64, head + wrs + sges + round_up(WEFT_BATCH * (size_t)max_inline));
	if (!p)
		return NULL;
	struct weft_batch *b = (struct weft_batch *)p;
	*b = (struct weft_batch){
		.self = (uintptr_t)b, .qp = qp, .srq = srq, .max_sges = max_sges, .max_inline = max_inline,
		.sends = receive ? NULL : (struct weft_send *)(p + head),
		.recvs = receive ? (struct weft_recv *)(p + head) : NULL,
		.sges = (struct weft_sge *)(p + head + wrs),
		.inlines = (uint8_t *)(p + head + wrs + sges),
	};
	return b;
}

void weft_free_batch(struct weft_batch *b) { free(b); }

_Static_assert(sizeof(struct weft_sge) == sizeof(struct ibv_sge) && offsetof(struct weft_sge, lkey) == offsetof(struct ibv_sge, lkey),
	       "segments are handed on as they are");

// POST has the requests of a batch from b->posted on posted by call, and counts them: those before bad, if it failed.
// A call that was interrupted is made again for the rest, if it said which that is.
#define POST(b, wrs, n, bad, call) \
	do { \
		errno = 0; \
		bad = NULL; \
		b->error = result(call); \
		if (b->error == 0) \
			b->posted = (uint32_t)n; \
		else if (bad >= wrs + b->posted && bad < wrs + n) \
			b->posted = (uint32_t)(bad - wrs); \
		else \
			break; \
	} while (b->error == EINTR)

void weft_post_send(uintptr_t batch, int n)
{
	struct weft_batch *b = (struct weft_batch *)batch;
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						     IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
	struct ibv_send_wr wrs[WEFT_BATCH], *bad = NULL;
	struct ibv_sge data[WEFT_BATCH];
	for (int i = 0; i < n; i++) {
		const struct weft_send *s = &b->sends[i];
		struct ibv_send_wr *w = &wrs[i];
		w->wr_id = s->id;
		w->next = w + 1;
		w->opcode = opcodes[s->op];
		w->send_flags = (s->flags & WEFT_SIGNALED ? IBV_SEND_SIGNALED : 0) | (s->flags & WEFT_FENCE ? IBV_SEND_FENCE : 0) |
				(s->flags & WEFT_SOLICITED ? IBV_SEND_SOLICITED : 0);
		w->imm_data = htonl(s->imm);
		if (s->inline_bytes) {
			data[i] = (struct ibv_sge){(uintptr_t)(b->inlines + (size_t)i * b->max_inline), s->inline_bytes, 0};
			w->sg_list = &data[i];
			w->num_sge = 1;
			w->send_flags |= IBV_SEND_INLINE;
		} else {
			w->sg_list = (struct ibv_sge *)(b->sges + (size_t)i * b->max_sges);
			w->num_sge = s->sges;
		}
		if (w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
			w->wr.atomic.remote_addr = s->remote_addr;
			w->wr.atomic.compare_add = s->operand[0];
			w->wr.atomic.swap = s->operand[1];
			w->wr.atomic.rkey = s->rkey;
		} else {
			w->wr.rdma.remote_addr = s->remote_addr;
			w->wr.rdma.rkey = s->rkey;
		}
	}
	wrs[n - 1].next = NULL;
	b->posted = 0;
	POST(b, wrs, n, bad, b->qp->context->ops.post_send(b->qp, wrs + b->posted, &bad));
}

void weft_post_recv(uintptr_t batch, int n)
{
	struct weft_batch *b = (struct weft_batch *)batch;
	struct ibv_recv_wr wrs[WEFT_BATCH], *bad = NULL;
	for (int i = 0; i < n; i++) {
		wrs[i].wr_id = b->recvs[i].id;
		wrs[i].next = &wrs[i + 1];
		wrs[i].sg_list = (struct ibv_sge *)(b->sges + (size_t)i * b->max_sges);
		wrs[i].num_sge = (int)b->recvs[i].sges;
	}
	wrs[n - 1].next = NULL;
	b->posted = 0;
	POST(b, wrs, n, bad, b->srq ? b->srq->context->ops.post_srq_recv(b->srq, wrs + b->posted, &bad)
				    : b->qp->context->ops.post_recv(b->qp, wrs + b->posted, &bad));
}

struct weft_polled *weft_new_polled(struct ibv_cq *cq)
{
	struct weft_polled *p = calloc(1, sizeof *p);
	if (p) {
		p->self = (uintptr_t)p;
		p->cq = cq;
	}
	return p;
}

void weft_free_polled(struct weft_polled *p) { free(p); }

void weft_poll(uintptr_t polled, int n)
{
	struct weft_polled *p = (struct weft_polled *)polled;
	struct ibv_wc wc[WEFT_POLL];
	int tries = WEFT_TRIES;
	do
		p->got = poll_cq(p->cq, n, wc);
	while (p->got == 0 && --tries > 0);
	for (int i = 0; i < p->got; i++)
		weft_convert(&p->wc[i], &wc[i]);
}

#endif
