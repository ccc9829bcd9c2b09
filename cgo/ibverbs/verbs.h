// What the C files of this package share and Go does not see.
#ifndef WEFT_VERBS_H
#define WEFT_VERBS_H

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <sys/types.h>

// The functions of the library that are called by name, which all versions of
// it since 2009 have. What verbs.h has as inline functions goes through the
// operations of a context instead.
#define WEFT_SYMBOLS(X) \
	X(struct ibv_device **, get_device_list, (int *)) \
	X(void, free_device_list, (struct ibv_device **)) \
	X(__be64, get_device_guid, (struct ibv_device *)) \
	X(struct ibv_context *, open_device, (struct ibv_device *)) \
	X(int, close_device, (struct ibv_context *)) \
	X(int, get_async_event, (struct ibv_context *, struct ibv_async_event *)) \
	X(void, ack_async_event, (struct ibv_async_event *)) \
	X(int, query_device, (struct ibv_context *, struct ibv_device_attr *)) \
	X(int, query_port, (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *)) \
	X(int, query_pkey, (struct ibv_context *, uint8_t, int, __be16 *)) \
	X(struct ibv_pd *, alloc_pd, (struct ibv_context *)) \
	X(int, dealloc_pd, (struct ibv_pd *)) \
	X(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int)) \
	X(int, dereg_mr, (struct ibv_mr *)) \
	X(struct ibv_comp_channel *, create_comp_channel, (struct ibv_context *)) \
	X(int, destroy_comp_channel, (struct ibv_comp_channel *)) \
	X(struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	X(int, destroy_cq, (struct ibv_cq *)) \
	X(int, get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
	X(void, ack_cq_events, (struct ibv_cq *, unsigned int)) \
	X(struct ibv_srq *, create_srq, (struct ibv_pd *, struct ibv_srq_init_attr *)) \
	X(int, modify_srq, (struct ibv_srq *, struct ibv_srq_attr *, int)) \
	X(int, destroy_srq, (struct ibv_srq *)) \
	X(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	X(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	X(int, query_qp, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)) \
	X(int, destroy_qp, (struct ibv_qp *)) \
	X(struct ibv_ah *, create_ah, (struct ibv_pd *, struct ibv_ah_attr *)) \
	X(int, destroy_ah, (struct ibv_ah *))

struct weft_lib {
#define X(ret, name, args) ret(*name) args;
	WEFT_SYMBOLS(X)
#undef X
	// Since 2020; may be missing.
	ssize_t (*query_gid_table)(struct ibv_context *, struct weft_gid *, size_t max, uint32_t flags, size_t entry_size);
};

// result is the errno of what a verb returned: an errno, or -1 with errno set, or a
// negated errno; it depends on the driver and its age.
static inline int result(int rc)
{
	if (rc >= 0)
		return rc;
	return rc == -1 && errno ? errno : -rc;
}

#define RETRY(call) ({ int rc_; do { errno = 0; rc_ = result(call); } while (rc_ == EINTR); rc_; })
#define RETRY_POINTER(call) ({ __typeof__(call) p_; do { errno = 0; p_ = (call); } while (!p_ && errno == EINTR); if (!p_ && !errno) errno = ENOMEM; p_; })

// poll_cq is a system call of a few old drivers. Less than 0 is a number of the driver's own.
static inline int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = cq->context->ops.poll_cq(cq, n, wc);
	while (got == -1 && errno == EINTR) {
		errno = 0; // it may be that of another call
		got = cq->context->ops.poll_cq(cq, n, wc);
	}
	return got;
}

// weft_convert is a completion in the terms of rdma.WC.
static inline void weft_convert(struct weft_wc *to, const struct ibv_wc *wc)
{
	static const uint8_t ops[] = {
		[IBV_WC_SEND] = 0, [IBV_WC_RDMA_WRITE] = 1, [IBV_WC_RDMA_READ] = 2, [IBV_WC_FETCH_ADD] = 3, [IBV_WC_COMP_SWAP] = 4,
	};
	to->id = wc->wr_id;
	to->qpn = wc->qp_num;
	to->status = (uint8_t)wc->status;
	to->vendor = to->imm = to->bytes = 0;
	to->op = to->flags = 0;
	if (wc->status != IBV_WC_SUCCESS) {
		to->vendor = wc->vendor_err; // nothing else is set
		return;
	}
	to->bytes = wc->byte_len;
	if (!(wc->opcode & IBV_WC_RECV)) {
		to->op = (unsigned)wc->opcode < sizeof ops ? ops[wc->opcode] : 0;
		return;
	}
	to->op = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM ? 6 : 5;
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		to->flags = 1;
		to->imm = ntohl(wc->imm_data);
	}
}

#endif
