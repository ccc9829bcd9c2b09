// A library in the place of libibverbs that opens a device and misbehaves as it
// is told, for tests of how its callers get along with that. A send completes
// as soon as it is posted, and goes nowhere; receives only fill their queue.
//
// A file beside this one, which is shared with the test, says what goes wrong, and counts: see attach.
#define _GNU_SOURCE // dladdr
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr

// What may fail. Posts, polls and arms are called through the context.
#define CALLS(X) \
	X(get_device_list) X(open_device) X(close_device) X(get_async_event) X(query_device) X(query_port) X(query_pkey) \
	X(query_gid_table) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) \
	X(create_cq) X(destroy_cq) X(get_cq_event) X(create_srq) X(modify_srq) X(destroy_srq) X(create_qp) X(modify_qp) \
	X(query_qp) X(destroy_qp) X(create_ah) X(destroy_ah) X(post_send) X(post_recv) X(post_srq_recv) X(poll_cq) X(req_notify_cq)
#define NUMBER(name) name,
#define NAME(name) #name,
enum call { CALLS(NUMBER) NCALLS };
static const char *const names[] = {CALLS(NAME)};

enum { POSITIVE, NEGATIVE, MINUS_ONE }; // how a call says its errno

// The type standinControl of the tests is the same.
static struct control {
	_Atomic uint32_t interrupt;  // every other call is interrupted
	_Atomic uint32_t convention; // one of the above
	_Atomic uint32_t stop_at;    // a post that fails does so at a request whose number, from 1 on, is a multiple of this
	_Atomic uint32_t lose;	     // so many notifications
	_Atomic uint32_t fatal;	     // the device is lost: all calls fail
	_Atomic uint32_t objects;    // that are alive, with the device
	_Atomic uint32_t posted;     // work requests that were taken
	_Atomic uint32_t notified;   // notifications that were not lost
	_Atomic uint32_t slow;	     // ms that query_port takes
	uint32_t unused;
	struct {
		char name[24];
		_Atomic uint32_t calls, interrupted;
		_Atomic uint32_t fails; // with this errno
		uint32_t unused;
	} call[NCALLS];
} *control;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // of all that follows

struct cq {
	struct ibv_cq cq;
	struct cq *next;
	int armed;
	unsigned pending, unacked; // notifications
	unsigned head, tail;
	struct ibv_wc wc[];
};
static struct cq *cqs;
static uint32_t last_key, last_qpn;
static struct ibv_device device = {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "standin0", .dev_name = "uverbs9"};
static struct ibv_context *_Atomic opened; // the one

static void wrong(const char *what)
{
	fprintf(stderr, "standin: %s\n", what);
	abort();
}

__attribute__((constructor)) static void attach(void)
{
	Dl_info self;
	char name[4096] = "";
	if (dladdr(&device, &self))
		snprintf(name, sizeof name, "%s.control", self.dli_fname);
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *control))
		wrong("its control file cannot be opened");
	control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (control == MAP_FAILED)
		wrong("its control file cannot be mapped");
	control->stop_at = 1;
	for (int i = 0; i < NCALLS; i++)
		snprintf(control->call[i].name, sizeof control->call[i].name, "%s", names[i]);
}

// verdict is the errno that a call has to end with.
static int verdict(enum call i)
{
	uint32_t n = control->call[i].calls++;
	if (control->fatal)
		return EIO;
	if (control->interrupt && n % 2 == 0) {
		control->call[i].interrupted++;
		return EINTR;
	}
	return control->call[i].fails;
}

static int answer(int err)
{
	if (!err)
		return 0;
	errno = control->convention == MINUS_ONE ? err : ERANGE; // which counts only with -1
	return control->convention == MINUS_ONE ? -1 : control->convention == NEGATIVE ? -err : err;
}

// made is what a call returns that makes an object, after its verdict.
static void *made(int err, size_t size)
{
	void *p = err ? NULL : calloc(1, size);
	if (err)
		errno = err;
	else
		control->objects++;
	return p;
}

static int destroyed(int err, void *p)
{
	if (!err) {
		control->objects--;
		free(p);
	}
	return answer(err);
}

// Here fork would be made safe for registered memory, which breaks huge pages and children.
int ibv_fork_init(void) { wrong("ibv_fork_init was called"); return 0; }

// Devices.

struct ibv_device **ibv_get_device_list(int *n)
{
	int err = verdict(get_device_list);
	struct ibv_device **list = err ? NULL : calloc(2, sizeof *list);
	errno = err;
	*n = !err;
	if (list)
		list[0] = &device;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
__be64 ibv_get_device_guid(struct ibv_device *d) { return (void)d, 1; }

int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *e)
{
	uint64_t type; // and one more, as the test wrote it
	int err = verdict(get_async_event);
	if (!err && read(ctx->async_fd, &type, sizeof type) < 0)
		err = errno;
	if (!err)
		e->event_type = type - 1;
	return answer(err);
}

void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *a)
{
	(void)ctx;
	*a = (struct ibv_device_attr){.phys_port_cnt = 1, .max_qp = 64, .max_qp_wr = 512, .max_sge = 4, .max_cq = 64, .max_cqe = 4096, .max_srq = 8,
		.max_srq_wr = 512, .max_srq_sge = 4, .max_mr = 64, .max_mr_size = 1 << 30, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16};
	return answer(verdict(query_device));
}

int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr *a = (struct ibv_port_attr *)out;
	(void)port;
	a->state = IBV_PORT_ACTIVE;
	a->max_mtu = a->active_mtu = IBV_MTU_1024;
	a->max_msg_sz = 1 << 30;
	a->gid_tbl_len = a->pkey_tbl_len = 1;
	a->link_layer = IBV_LINK_LAYER_ETHERNET;
	int err = verdict(query_port);
	usleep(control->slow * 1000);
	if (ctx != opened)
		wrong("the device was closed during query_port");
	return answer(err);
}

int ibv_query_pkey(struct ibv_context *ctx, uint8_t port, int index, __be16 *key)
{
	(void)ctx, (void)port, (void)index;
	*key = 0xffff;
	return answer(verdict(query_pkey));
}

ssize_t _ibv_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
{
	(void)ctx, (void)max, (void)flags, (void)size;
	int err = verdict(query_gid_table);
	*e = (struct ibv_gid_entry){.gid.raw = {[10] = 0xff, 0xff, 10, 0, 0, 1}, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2};
	return err ? -err : 1;
}

// Completions.

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *ch = made(verdict(create_comp_channel), sizeof *ch);
	if (ch)
		*ch = (struct ibv_comp_channel){ctx, eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC), 0};
	return ch;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	int err = verdict(destroy_comp_channel);
	if (!err)
		close(ch->fd);
	return destroyed(err, ch);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int n, void *context, struct ibv_comp_channel *ch, int vector)
{
	(void)vector;
	struct cq *q = made(verdict(create_cq), sizeof *q + n * sizeof(struct ibv_wc));
	if (!q)
		return NULL;
	q->cq = (struct ibv_cq){.context = ctx, .channel = ch, .cq_context = context, .cqe = n};
	pthread_mutex_lock(&mutex);
	q->next = cqs;
	cqs = q;
	pthread_mutex_unlock(&mutex);
	return &q->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct cq *q = (struct cq *)cq, **p = &cqs;
	int err = verdict(destroy_cq);
	if (!err && q->unacked)
		wrong("a CQ with notifications that were not acknowledged is destroyed: that waits for ever");
	pthread_mutex_lock(&mutex);
	while (!err && *p != q)
		p = &(*p)->next;
	for (uint64_t one; !err && q->pending; q->pending--)
		if (read(cq->channel->fd, &one, sizeof one) < 0)
			wrong("a notification is gone");
	if (!err)
		*p = q->next;
	pthread_mutex_unlock(&mutex);
	return destroyed(err, q);
}

int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **context)
{
	uint64_t one;
	int err = verdict(get_cq_event);
	pthread_mutex_lock(&mutex);
	if (!err && read(ch->fd, &one, sizeof one) < 0)
		err = errno;
	for (struct cq *q = cqs; !err && q; q = q->next) {
		if (q->cq.channel != ch || !q->pending)
			continue;
		q->pending--;
		q->unacked++;
		*cq = &q->cq;
		*context = q->cq.cq_context;
		break;
	}
	pthread_mutex_unlock(&mutex);
	return answer(err);
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	if (n > ((struct cq *)cq)->unacked)
		wrong("more notifications are acknowledged than there were");
	((struct cq *)cq)->unacked -= n;
}

static int poll_cq_op(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct cq *q = (struct cq *)cq;
	int err = verdict(poll_cq), got = 0;
	if (err == EINTR)
		errno = err;
	if (err)
		return err == EINTR || control->convention == MINUS_ONE ? -1 : -2; // numbers of the driver's own
	pthread_mutex_lock(&mutex);
	for (; got < n && q->tail != q->head; got++)
		wc[got] = q->wc[q->tail++ % cq->cqe];
	pthread_mutex_unlock(&mutex);
	return got;
}

static int arm_op(struct ibv_cq *cq, int solicited)
{
	(void)solicited;
	int err = verdict(req_notify_cq);
	pthread_mutex_lock(&mutex);
	if (!err)
		((struct cq *)cq)->armed = 1;
	pthread_mutex_unlock(&mutex);
	return answer(err);
}

static void complete(struct ibv_qp *qp, uint64_t id)
{
	static const uint64_t one = 1;
	struct cq *q = (struct cq *)qp->send_cq;
	pthread_mutex_lock(&mutex);
	if (q->head - q->tail == (unsigned)q->cq.cqe)
		wrong("a CQ overran");
	q->wc[q->head++ % q->cq.cqe] = (struct ibv_wc){.wr_id = id, .qp_num = qp->qp_num, .status = IBV_WC_SUCCESS, .opcode = IBV_WC_SEND};
	if (q->armed && control->lose) {
		control->lose--;
	} else if (q->armed) {
		control->notified++;
		q->pending++;
		if (write(q->cq.channel->fd, &one, sizeof one) < 0)
			wrong("a notification cannot be written");
	}
	q->armed = 0;
	pthread_mutex_unlock(&mutex);
}

// Queues.

// taken says whether the next request of a post that has to end with err goes through.
static int taken(int err)
{
	if (err && (control->posted + 1) % control->stop_at == 0)
		return 0;
	control->posted++;
	return 1;
}

static int post_send_op(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int err = verdict(post_send);
	for (; wr && taken(err); wr = wr->next)
		if (wr->send_flags & IBV_SEND_SIGNALED)
			complete(qp, wr->wr_id);
	*bad = wr;
	return wr ? answer(err) : 0;
}

static int take(int err, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr && taken(err); wr = wr->next)
		;
	*bad = wr;
	return wr ? answer(err) : 0;
}

static int post_recv_op(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) { return (void)qp, take(verdict(post_recv), wr, bad); }
static int post_srq_op(struct ibv_srq *s, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) { return (void)s, take(verdict(post_srq_recv), wr, bad); }

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct ibv_context *ctx = made(verdict(open_device), sizeof *ctx);
	if (!ctx)
		return NULL;
	ctx->device = d;
	ctx->async_fd = eventfd(0, EFD_CLOEXEC);
	ctx->ops.poll_cq = poll_cq_op;
	ctx->ops.req_notify_cq = arm_op;
	ctx->ops.post_send = post_send_op;
	ctx->ops.post_recv = post_recv_op;
	ctx->ops.post_srq_recv = post_srq_op;
	return opened = ctx;
}

int ibv_close_device(struct ibv_context *ctx)
{
	int err = verdict(close_device);
	if (!err)
		close(ctx->async_fd), opened = NULL;
	return destroyed(err, ctx);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp *qp = made(verdict(create_qp), sizeof *qp);
	if (qp)
		*qp = (struct ibv_qp){.context = pd->context, .qp_context = a->qp_context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq,
			.srq = a->srq, .qp_num = ++last_qpn};
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	int err = verdict(modify_qp);
	if (!err && mask & IBV_QP_STATE)
		qp->state = a->qp_state;
	return answer(err);
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask, (void)init;
	a->qp_state = qp->state;
	return answer(verdict(query_qp));
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = made(verdict(reg_mr), sizeof *mr);
	(void)access;
	if (mr)
		*mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = ++last_key, .rkey = ++last_key};
	return mr;
}

// Of these, a caller looks at the context at most.
#define MAKE(type, name, parent, context_of, ...) \
	struct ibv_##type *ibv_##name(struct ibv_##parent *p __VA_ARGS__) \
	{ \
		struct ibv_##type *x = made(verdict(name), sizeof *x); \
		if (x) \
			x->context = context_of; \
		return x; \
	}
#define DESTROY(type, name) \
	int ibv_##name(struct ibv_##type *x) { return destroyed(verdict(name), x); }
MAKE(pd, alloc_pd, context, p)
MAKE(srq, create_srq, pd, p->context, , struct ibv_srq_init_attr *a)
MAKE(ah, create_ah, pd, p->context, , struct ibv_ah_attr *a)
DESTROY(pd, dealloc_pd)
DESTROY(mr, dereg_mr)
DESTROY(srq, destroy_srq)
DESTROY(ah, destroy_ah)
DESTROY(qp, destroy_qp)

int ibv_modify_srq(struct ibv_srq *s, struct ibv_srq_attr *a, int mask) { return (void)s, (void)a, (void)mask, answer(verdict(modify_srq)); }
