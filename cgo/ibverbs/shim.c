//go:build linux && cgo

#define _GNU_SOURCE // dlvsym
#include "shim.h"

#ifndef WEFT_VERBS

int weft_load(const char *path, struct weft_lib **lib, char *text, size_t size)
{
	(void)path, (void)lib, (void)text, (void)size;
	return WEFT_NOT_BUILT;
}

#else

#include "verbs.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *symbol(void *handle, const char *name)
{
	void *p = dlvsym(handle, name, "IBVERBS_1.1");
	return p ? p : dlsym(handle, name);
}

int weft_load(const char *path, struct weft_lib **out, char *text, size_t size)
{
	static const char *const usual[] = {"libibverbs.so.1", "libibverbs.so"};
	void *handle = NULL;
	text[0] = 0;
	if (path[0]) {
		handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!handle)
			snprintf(text, size, "%s", dlerror());
	}
	for (int i = 0; i < 2 && !path[0] && !handle; i++) {
		handle = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
		if (!handle && !text[0]) // the first name is the one to install
			snprintf(text, size, "%s", dlerror());
	}
	if (!handle)
		return WEFT_NO_LIBRARY;
	struct weft_lib *lib = calloc(1, sizeof *lib);
	const char *missing = NULL;
	if (!lib) {
		snprintf(text, size, "out of memory");
		dlclose(handle);
		return WEFT_NO_LIBRARY;
	}
#define X(ret, name, args) \
	lib->name = (ret(*) args)symbol(handle, "ibv_" #name); \
	if (!lib->name && !missing) \
		missing = "ibv_" #name;
	WEFT_SYMBOLS(X)
#undef X
	*(void **)&lib->query_gid_table = dlsym(handle, "_ibv_query_gid_table");
	if (missing) {
		snprintf(text, size, "%s", missing);
		free(lib);
		dlclose(handle);
		return WEFT_NO_SYMBOL;
	}
	*out = lib;
	return WEFT_LOADED;
}

// Devices.

int weft_list(struct weft_lib *lib, struct weft_device *out, int max, int *count)
{
	int n = 0;
	struct ibv_device **list = RETRY_POINTER(lib->get_device_list(&n));
	if (!list)
		return errno;
	*count = n;
	for (int i = 0; i < n && i < max; i++) {
		memset(&out[i], 0, sizeof out[i]);
		snprintf(out[i].name, sizeof out[i].name, "%s", list[i]->name);
		snprintf(out[i].uverbs, sizeof out[i].uverbs, "%s", list[i]->dev_name);
		out[i].guid = be64toh(lib->get_device_guid(list[i]));
		out[i].iwarp = list[i]->transport_type == IBV_TRANSPORT_IWARP;
	}
	lib->free_device_list(list);
	return 0;
}

static int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

static int at_most(uint64_t v)
{
	return v > INT32_MAX ? INT32_MAX : (int)v;
}

static int query_limits(struct weft_lib *lib, struct ibv_context *ctx, struct weft_limits *l)
{
	struct ibv_device_attr a;
	memset(&a, 0, sizeof a);
	int err = RETRY(lib->query_device(ctx, &a));
	if (err)
		return err;
	memset(l, 0, sizeof *l);
	snprintf(l->firmware, sizeof l->firmware, "%s", a.fw_ver);
	l->ports = a.phys_port_cnt;
	l->qps = a.max_qp;
	l->qp_wrs = a.max_qp_wr;
	l->sges = a.max_sge_rd > 0 && a.max_sge_rd < a.max_sge ? a.max_sge_rd : a.max_sge;
	if (a.max_srq_sge > 0 && a.max_srq_sge < l->sges)
		l->sges = a.max_srq_sge;
	l->cqs = a.max_cq;
	l->cqes = a.max_cqe;
	l->srqs = a.max_srq;
	l->srq_wrs = a.max_srq_wr;
	l->mrs = a.max_mr;
	l->reads = a.max_qp_init_rd_atom < a.max_qp_rd_atom ? a.max_qp_init_rd_atom : a.max_qp_rd_atom;
	l->atomics = a.atomic_cap != IBV_ATOMIC_NONE;
	l->mr_bytes = a.max_mr_size;
	return 0;
}

struct ibv_context *weft_open(struct weft_lib *lib, const char *name, struct weft_limits *limits)
{
	int n = 0;
	struct ibv_device **list = RETRY_POINTER(lib->get_device_list(&n));
	if (!list)
		return NULL;
	struct ibv_context *ctx = NULL;
	int err = ENODEV;
	for (int i = 0; i < n; i++) {
		if (strcmp(list[i]->name, name))
			continue;
		ctx = RETRY_POINTER(lib->open_device(list[i]));
		err = ctx ? 0 : errno;
		break;
	}
	lib->free_device_list(list);
	if (ctx && !(err = set_nonblocking(ctx->async_fd)))
		err = query_limits(lib, ctx, limits);
	if (err && ctx) {
		(void)RETRY(lib->close_device(ctx));
		ctx = NULL;
	}
	errno = err;
	return ctx;
}

int weft_close(struct weft_lib *lib, struct ibv_context *ctx) { return RETRY(lib->close_device(ctx)); }
int weft_event_fd(struct ibv_context *ctx) { return ctx->async_fd; }

int weft_query_port(struct weft_lib *lib, struct ibv_context *ctx, int port, struct weft_port *p)
{
	struct ibv_port_attr a;
	struct verbs_context *vctx = verbs_get_ctx_op(ctx, query_port);
	memset(&a, 0, sizeof a);
	// The library's own function fills only what its first version knew.
	int err = vctx ? RETRY(vctx->query_port(ctx, port, &a, sizeof a))
		       : RETRY(lib->query_port(ctx, port, (struct _compat_ibv_port_attr *)&a));
	if (err)
		return err;
	p->state = a.state;
	p->link_layer = a.link_layer;
	p->max_mtu = a.max_mtu;
	p->active_mtu = a.active_mtu;
	p->lid = a.lid;
	p->sm_lid = a.sm_lid;
	p->gids = a.gid_tbl_len;
	p->pkeys = a.pkey_tbl_len;
	p->width = a.active_width;
	p->speed = a.active_speed;
	p->grh = !!(a.flags & IBV_QPF_GRH_REQUIRED);
	p->max_message = a.max_msg_sz;
	return 0;
}

int weft_query_pkey(struct weft_lib *lib, struct ibv_context *ctx, int port, int index, uint16_t *key)
{
	__be16 k = 0;
	int err = RETRY(lib->query_pkey(ctx, port, index, &k));
	*key = ntohs(k);
	return err;
}

int weft_query_gids(struct weft_lib *lib, struct ibv_context *ctx, struct weft_gid *out, int max, int *count)
{
	if (!lib->query_gid_table)
		return EOPNOTSUPP;
	ssize_t n;
	do
		n = lib->query_gid_table(ctx, out, (size_t)max, 0, sizeof *out);
	while (n == -EINTR);
	*count = n < 0 ? 0 : (int)n;
	return n < 0 ? (int)-n : 0;
}

int weft_next_event(struct weft_lib *lib, struct ibv_context *ctx, struct weft_event *out)
{
	struct ibv_async_event e;
	memset(&e, 0, sizeof e);
	int err = RETRY(lib->get_async_event(ctx, &e));
	if (err)
		return err;
	out->type = e.event_type;
	out->port = 0;
	out->id = 0;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->id = (uintptr_t)e.element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->id = (uintptr_t)e.element.qp->qp_context;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		out->id = (uintptr_t)e.element.srq->srq_context;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->port = e.element.port_num;
		break;
	default:
		break;
	}
	// Destroying what the event is about waits for this.
	lib->ack_async_event(&e);
	return 0;
}

// Objects.

struct ibv_pd *weft_alloc_pd(struct weft_lib *lib, struct ibv_context *ctx) { return RETRY_POINTER(lib->alloc_pd(ctx)); }
int weft_dealloc_pd(struct weft_lib *lib, struct ibv_pd *pd) { return RETRY(lib->dealloc_pd(pd)); }

int weft_try_address(struct weft_lib *lib, struct ibv_pd *pd, int port, int index, const uint8_t *gid)
{
	struct ibv_ah_attr a;
	memset(&a, 0, sizeof a);
	memcpy(a.grh.dgid.raw, gid, 16);
	a.grh.sgid_index = index;
	a.grh.hop_limit = 64;
	a.is_global = 1;
	a.port_num = port;
	struct ibv_ah *ah = RETRY_POINTER(lib->create_ah(pd, &a));
	return ah ? RETRY(lib->destroy_ah(ah)) : errno;
}

struct ibv_mr *weft_reg_mr(struct weft_lib *lib, struct ibv_pd *pd, uintptr_t addr, size_t length, int access, uint32_t *lkey, uint32_t *rkey)
{
	struct ibv_mr *mr = RETRY_POINTER(lib->reg_mr(pd, (void *)addr, length, access));
	if (mr) {
		*lkey = mr->lkey;
		*rkey = mr->rkey;
	}
	return mr;
}

int weft_dereg_mr(struct weft_lib *lib, struct ibv_mr *mr) { return RETRY(lib->dereg_mr(mr)); }

struct ibv_comp_channel *weft_create_channel(struct weft_lib *lib, struct ibv_context *ctx, int *fd)
{
	struct ibv_comp_channel *ch = RETRY_POINTER(lib->create_comp_channel(ctx));
	if (!ch)
		return NULL;
	int err = set_nonblocking(ch->fd);
	if (err) {
		(void)RETRY(lib->destroy_comp_channel(ch));
		errno = err;
		return NULL;
	}
	*fd = ch->fd;
	return ch;
}

int weft_destroy_channel(struct weft_lib *lib, struct ibv_comp_channel *ch) { return RETRY(lib->destroy_comp_channel(ch)); }

int weft_next_notification(struct weft_lib *lib, struct ibv_comp_channel *ch, uint64_t *id)
{
	struct ibv_cq *cq = NULL;
	void *context = NULL;
	int err = RETRY(lib->get_cq_event(ch, &cq, &context));
	*id = (uintptr_t)context;
	return err;
}

struct ibv_cq *weft_create_cq(struct weft_lib *lib, struct ibv_context *ctx, int size, uint64_t id, struct ibv_comp_channel *ch, int *granted)
{
	struct ibv_cq *cq = RETRY_POINTER(lib->create_cq(ctx, size, (void *)(uintptr_t)id, ch, 0));
	if (cq)
		*granted = cq->cqe;
	return cq;
}

int weft_destroy_cq(struct weft_lib *lib, struct ibv_cq *cq, unsigned unacked)
{
	if (unacked)
		lib->ack_cq_events(cq, unacked);
	return RETRY(lib->destroy_cq(cq));
}

void weft_ack(struct weft_lib *lib, struct ibv_cq *cq, unsigned n) { lib->ack_cq_events(cq, n); }
int weft_arm(struct ibv_cq *cq, int solicited_only) { return RETRY(cq->context->ops.req_notify_cq(cq, solicited_only)); }

struct ibv_srq *weft_create_srq(struct weft_lib *lib, struct ibv_pd *pd, uint64_t id, int *wrs, int *sges)
{
	struct ibv_srq_init_attr a;
	memset(&a, 0, sizeof a);
	a.srq_context = (void *)(uintptr_t)id;
	a.attr.max_wr = *wrs;
	a.attr.max_sge = *sges;
	struct ibv_srq *srq = RETRY_POINTER(lib->create_srq(pd, &a));
	if (srq) {
		*wrs = at_most(a.attr.max_wr);
		*sges = at_most(a.attr.max_sge);
	}
	return srq;
}

int weft_limit_srq(struct weft_lib *lib, struct ibv_srq *srq, int limit)
{
	struct ibv_srq_attr a;
	memset(&a, 0, sizeof a);
	a.srq_limit = limit;
	return RETRY(lib->modify_srq(srq, &a, IBV_SRQ_LIMIT));
}

int weft_destroy_srq(struct weft_lib *lib, struct ibv_srq *srq) { return RETRY(lib->destroy_srq(srq)); }

struct ibv_qp *weft_create_qp(struct weft_lib *lib, struct ibv_pd *pd, uint64_t id, struct ibv_cq *send, struct ibv_cq *recv,
			      struct ibv_srq *srq, struct weft_caps *caps, uint32_t *num)
{
	struct ibv_qp_init_attr a;
	memset(&a, 0, sizeof a);
	a.qp_context = (void *)(uintptr_t)id;
	a.send_cq = send;
	a.recv_cq = recv;
	a.srq = srq;
	a.qp_type = IBV_QPT_RC;
	a.cap.max_send_wr = caps->sends;
	a.cap.max_recv_wr = caps->recvs;
	a.cap.max_send_sge = caps->send_sges;
	a.cap.max_recv_sge = caps->recv_sges;
	a.cap.max_inline_data = caps->inline_bytes;
	struct ibv_qp *qp = RETRY_POINTER(lib->create_qp(pd, &a));
	if (qp) {
		caps->sends = at_most(a.cap.max_send_wr);
		caps->recvs = at_most(a.cap.max_recv_wr);
		caps->send_sges = at_most(a.cap.max_send_sge);
		caps->recv_sges = at_most(a.cap.max_recv_sge);
		caps->inline_bytes = at_most(a.cap.max_inline_data);
		*num = qp->qp_num;
	}
	return qp;
}

int weft_destroy_qp(struct weft_lib *lib, struct ibv_qp *qp) { return RETRY(lib->destroy_qp(qp)); }

int weft_init_qp(struct weft_lib *lib, struct ibv_qp *qp, int port, int pkey_index, int access)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = port;
	a.pkey_index = pkey_index;
	a.qp_access_flags = access;
	return RETRY(lib->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

int weft_rtr_qp(struct weft_lib *lib, struct ibv_qp *qp, const struct weft_rtr *r)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = r->mtu;
	a.dest_qp_num = r->dest_qpn;
	a.rq_psn = r->psn;
	a.max_dest_rd_atomic = r->reads;
	a.min_rnr_timer = r->rnr_timer;
	a.ah_attr.dlid = r->dlid;
	a.ah_attr.sl = r->service_level;
	a.ah_attr.port_num = r->port;
	a.ah_attr.is_global = r->global;
	if (r->global) {
		memcpy(a.ah_attr.grh.dgid.raw, r->dgid, 16);
		a.ah_attr.grh.flow_label = r->flow_label;
		a.ah_attr.grh.sgid_index = r->sgid_index;
		a.ah_attr.grh.hop_limit = r->hop_limit;
		a.ah_attr.grh.traffic_class = r->traffic_class;
	}
	return RETRY(lib->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

int weft_rts_qp(struct weft_lib *lib, struct ibv_qp *qp, uint32_t psn, int reads, int timeout, int retries, int rnr_retries)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = psn;
	a.max_rd_atomic = reads;
	a.timeout = timeout;
	a.retry_cnt = retries;
	a.rnr_retry = rnr_retries;
	return RETRY(lib->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					    IBV_QP_RNR_RETRY));
}

static int set_state(struct weft_lib *lib, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = state;
	return RETRY(lib->modify_qp(qp, &a, IBV_QP_STATE));
}

int weft_fail_qp(struct weft_lib *lib, struct ibv_qp *qp) { return set_state(lib, qp, IBV_QPS_ERR); }
int weft_reset_qp(struct weft_lib *lib, struct ibv_qp *qp) { return set_state(lib, qp, IBV_QPS_RESET); }

int weft_query_qp(struct weft_lib *lib, struct ibv_qp *qp, int *state)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	memset(&a, 0, sizeof a);
	memset(&init, 0, sizeof init);
	int err = RETRY(lib->query_qp(qp, &a, IBV_QP_STATE, &init));
	*state = a.qp_state;
	return err;
}

#endif
