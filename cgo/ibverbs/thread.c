//go:build linux && cgo

// The thread that owns the completion queues of a device.
//
//	        +--------- found something ---------+
//	        v                                   |
//	polling: every queue, into its ring --------+
//	   | nothing for the time of spin
//	   v
//	arm every queue, poll each again -- found something --> polling
//	   | nothing
//	   v
//	asleep in epoll: device's channel, bell ---- either, or 100 ms ---> polling
//
// The mutex guards the list of queues. Whoever wants to change it says so in
// waiting, or a thread that spins would never let go of the mutex for long enough.

#define _GNU_SOURCE
#include "shim.h"

#ifdef WEFT_VERBS

#include "verbs.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct weft_owned {
	struct weft_owned *next;
	struct ibv_cq *cq;
	struct weft_ring *ring;
	int notify_fd;
	int armed;	  // at the device
	unsigned unacked; // notifications of the device
};

struct weft_thread {
	struct weft_lib *lib;
	struct ibv_context *ctx;
	struct ibv_comp_channel *channel;
	int epoll, bell;
	int64_t spin;
	pthread_t id;
	pthread_mutex_t mutex;
	atomic_int waiting, stop;
	struct weft_owned *owned;
};

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void ring_bell(int fd)
{
	uint64_t one = 1;
	while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

// notify tells who waits for what is behind a position that there is something, or nothing ever again.
static void notify(struct weft_owned *q)
{
	struct weft_ring *r = q->ring;
	uint64_t armed = __atomic_load_n(&r->armed, __ATOMIC_SEQ_CST);
	if ((armed & 1) && (r->head > armed >> 1 || r->poll_error || r->arm_error) &&
	    __atomic_compare_exchange_n(&r->armed, &armed, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && q->notify_fd >= 0 &&
	    __atomic_exchange_n(&r->notified, 1, __ATOMIC_SEQ_CST) == 0)
		ring_bell(q->notify_fd);
}

// move_some takes what fits from the device's queue to the ring, and notifies if
// that is asked for.
static int move_some(struct weft_owned *q)
{
	struct weft_ring *r = q->ring;
	uint64_t head = r->head;
	uint64_t room = r->size - (head - __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE));
	if (room == 0) {
		// Go rings the bell when it sees stalled after it has made room.
		__atomic_store_n(&r->stalled, 1, __ATOMIC_SEQ_CST);
		room = r->size - (head - __atomic_load_n(&r->tail, __ATOMIC_SEQ_CST));
		if (room == 0)
			return 0;
	}
	struct ibv_wc wc[WEFT_POLL];
	int n = poll_cq(q->cq, room < WEFT_POLL ? (int)room : WEFT_POLL, wc);
	if (n == 0)
		return 0;
	if (n < 0) {
		__atomic_store_n(&r->poll_error, n, __ATOMIC_SEQ_CST);
		n = 0; // nothing came, but somebody must be told
	}
	for (int i = 0; i < n; i++)
		weft_convert(&r->wc[(head + i) & (r->size - 1)], &wc[i]);
	__atomic_store_n(&r->head, head + n, __ATOMIC_SEQ_CST);
	notify(q);
	return n;
}

static int move_all(struct weft_thread *t)
{
	int n = 0;
	for (struct weft_owned *q = t->owned; q; q = q->next)
		n += move_some(q);
	return n;
}

static void enter(struct weft_thread *t)
{
	while (atomic_load(&t->waiting))
		sched_yield();
	pthread_mutex_lock(&t->mutex);
}

static void arm_all(struct weft_thread *t)
{
	for (struct weft_owned *q = t->owned; q; q = q->next) {
		if (q->armed)
			continue;
		int err = weft_arm(q->cq, 0);
		q->armed = !err;
		if (err) {
			__atomic_store_n(&q->ring->arm_error, err, __ATOMIC_SEQ_CST);
			notify(q);
		}
	}
}

// take_notifications of the device; they say that queues are not armed any more.
static void take_notifications(struct weft_thread *t)
{
	struct ibv_cq *cq;
	void *context;
	while (t->lib->get_cq_event(t->channel, &cq, &context) == 0) {
		for (struct weft_owned *q = t->owned; q; q = q->next) {
			if (q->cq != cq)
				continue;
			q->armed = 0;
			if (++q->unacked == 64) { // each takes a lock
				t->lib->ack_cq_events(cq, q->unacked);
				q->unacked = 0;
			}
		}
	}
}

// doubt_notifications has all queues armed again.
static void doubt_notifications(struct weft_thread *t)
{
	for (struct weft_owned *q = t->owned; q; q = q->next)
		q->armed = 0;
}

// The thread sleeps no longer than so many ms, for the case that a notification was lost.
enum { LONGEST_SLEEP = 100 };

// The clock is read once in so many passes that found nothing: it may be slow.
enum { LOOK_AT_CLOCK = 32 };

// spun says whether the time of spin is over. idle counts passes that found nothing, since when is
// the clock at the first of them that looked.
static int spun(struct weft_thread *t, unsigned *idle, int64_t *since)
{
	if (t->spin <= 0)
		return 1;
	relax();
	if (++*idle % LOOK_AT_CLOCK)
		return 0;
	sched_yield(); // soft-RoCE works on these cores, too
	int64_t clock = now();
	if (*idle == LOOK_AT_CLOCK)
		*since = clock;
	return clock - *since >= t->spin;
}

static void *run(void *arg)
{
	struct weft_thread *t = arg;
	int64_t since = 0;
	unsigned idle = 0;
	while (!atomic_load(&t->stop)) {
		enter(t);
		int n = move_all(t);
		pthread_mutex_unlock(&t->mutex);
		if (n > 0)
			idle = 0;
		if (n > 0 || !spun(t, &idle, &since))
			continue;
		idle = 0;
		enter(t);
		arm_all(t);
		n = move_all(t);
		pthread_mutex_unlock(&t->mutex);
		if (n > 0)
			continue;
		struct epoll_event events[2];
		int ready = epoll_wait(t->epoll, events, 2, LONGEST_SLEEP); // EINTR is a reason to look, too
		if (ready == 0) {
			enter(t);
			doubt_notifications(t);
			pthread_mutex_unlock(&t->mutex);
		}
		for (int i = 0; i < ready; i++) {
			uint64_t rings;
			if (events[i].data.fd == t->bell) {
				while (read(t->bell, &rings, sizeof rings) < 0 && errno == EINTR)
					;
			} else {
				enter(t);
				take_notifications(t);
				pthread_mutex_unlock(&t->mutex);
			}
		}
	}
	return NULL;
}

int weft_new_bell(int semaphore)
{
	return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | (semaphore ? EFD_SEMAPHORE : 0));
}

static int watch(struct weft_thread *t, int fd)
{
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	return epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e);
}

static void destroy(struct weft_thread *t)
{
	if (t->channel)
		(void)weft_destroy_channel(t->lib, t->channel);
	if (t->epoll >= 0)
		close(t->epoll);
	if (t->bell >= 0)
		close(t->bell);
	free(t);
}

// start blocks all signals in the new thread: a handler of Go's must not run there.
static int start(struct weft_thread *t)
{
	sigset_t all, before;
	sigfillset(&all);
	int err = pthread_sigmask(SIG_SETMASK, &all, &before);
	if (err)
		return err;
	err = pthread_create(&t->id, NULL, run, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!err)
		pthread_setname_np(t->id, "weft-rdma");
	return err;
}

struct weft_thread *weft_start_thread(struct weft_lib *lib, struct ibv_context *ctx, int64_t spin_ns, int *bell)
{
	struct weft_thread *t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	t->lib = lib;
	t->ctx = ctx;
	t->spin = spin_ns;
	pthread_mutex_init(&t->mutex, NULL);
	t->epoll = epoll_create1(EPOLL_CLOEXEC);
	t->bell = weft_new_bell(0);
	int err = 0, fd;
	if (t->epoll < 0 || t->bell < 0 || !(t->channel = weft_create_channel(lib, ctx, &fd)) || watch(t, fd) < 0 || watch(t, t->bell) < 0)
		err = errno;
	if (!err)
		err = start(t);
	if (err) {
		destroy(t);
		errno = err;
		return NULL;
	}
	*bell = t->bell;
	return t;
}

int weft_stop_thread(struct weft_thread *t)
{
	atomic_store(&t->stop, 1);
	ring_bell(t->bell);
	int err = pthread_join(t->id, NULL);
	if (!err)
		destroy(t);
	return err;
}

// change lets the caller have the list.
static void change(struct weft_thread *t)
{
	atomic_fetch_add(&t->waiting, 1);
	pthread_mutex_lock(&t->mutex);
	atomic_fetch_sub(&t->waiting, 1);
}

struct weft_owned *weft_own_cq(struct weft_thread *t, int size, uint64_t id, int notify_fd, struct ibv_cq **cq, struct weft_ring **ring, int *granted)
{
	struct weft_owned *q = calloc(1, sizeof *q);
	if (!q)
		return NULL;
	q->cq = weft_create_cq(t->lib, t->ctx, size, id, t->channel, granted);
	if (!q->cq) {
		int err = errno;
		free(q);
		errno = err;
		return NULL;
	}
	uint64_t entries = 1;
	while (entries < (uint64_t)q->cq->cqe)
		entries *= 2;
	size_t bytes = sizeof *q->ring + entries * sizeof(struct weft_wc);
	q->ring = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!q->ring) {
		(void)weft_destroy_cq(t->lib, q->cq, 0);
		free(q);
		errno = ENOMEM;
		return NULL;
	}
	memset(q->ring, 0, bytes);
	q->ring->size = entries;
	q->notify_fd = notify_fd;
	*cq = q->cq;
	*ring = q->ring;
	change(t);
	q->next = t->owned;
	t->owned = q;
	pthread_mutex_unlock(&t->mutex);
	ring_bell(t->bell); // it may sleep, and does not know the queue yet
	return q;
}

int weft_release_cq(struct weft_thread *t, struct weft_owned *q, int lost)
{
	change(t);
	struct weft_owned **p = &t->owned;
	while (*p && *p != q)
		p = &(*p)->next;
	if (*p)
		*p = q->next;
	// An event that was taken for it is counted by now; one that was not is dropped by the kernel.
	unsigned unacked = q->unacked;
	q->unacked = 0;
	int err = weft_destroy_cq(t->lib, q->cq, unacked);
	if (err && err != EIO && !lost) {
		q->next = t->owned;
		t->owned = q;
	}
	pthread_mutex_unlock(&t->mutex);
	return err;
}

void weft_free_owned(struct weft_owned *q)
{
	free(q->ring);
	free(q);
}

#endif
