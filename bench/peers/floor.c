/*
 * floor.c: the least that a message can cost on this machine, by the same
 * orders (serve.h) and the same loops as the contestants. There is no matching,
 * no protocol and no generality here: no library can be faster by much.
 *
 *	floor DIR RANKS [pin]
 *
 * It forks its ranks itself; they share mapped memory and a loopback socket.
 *
 *	latency    a flag in shared memory. Up to 48 bytes ride in the flag's cache
 *	           line; more are copied once, by the receiver from the sender's
 *	           mapped buffer.
 *	bw         a ring of 64 such lines for up to 48 bytes; above, one copy per
 *	           message from mapped memory.
 *	tcplatency, tcpbw   nonblocking loopback sockets, polled.
 *	barrier    two ranks: a flag each. More, which may not have a processor
 *	           each: a counter; those that wait yield a few times, then sleep on
 *	           a futex. (Only yielding and only sleeping both cost more.)
 *	allreduce  8 bytes, two ranks: both write a line and read the other's.
 *	cpu        a futex.
 */
#include "serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <fcntl.h>

enum { MAX_BYTES = 16 << 20, MAX_WINDOW = 64, INLINE = 48 };

struct line {
	_Alignas(64) _Atomic uint64_t seq;
	char data[INLINE];
};

struct shared {
	struct line flag[2];              /* written by rank 0 and by rank 1 */
	struct line ring[MAX_WINDOW];     /* rank 0 to rank 1 */
	_Alignas(64) _Atomic uint32_t arrived, generation;
	_Alignas(64) _Atomic uint32_t bell;
};

static int rank, size, sock;
static struct shared *sh;
static char *mem[2]; /* send buffers of both ranks, mapped by both */
static char *rbuf;
static uint64_t seq, ringseq; /* last sequence numbers, equal in both ranks */
static long bad;

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

static inline void await(struct line *l, uint64_t v)
{
	while (atomic_load_explicit(&l->seq, memory_order_acquire) < v)
		relax();
}

static inline void post(struct line *l, uint64_t v)
{
	atomic_store_explicit(&l->seq, v, memory_order_release);
}

static void futex_wait(_Atomic uint32_t *a, uint32_t v)
{
	syscall(SYS_futex, a, FUTEX_WAIT, v, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *a)
{
	syscall(SYS_futex, a, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

static void barrier_once(void)
{
	uint32_t gen = atomic_load(&sh->generation);
	if (atomic_fetch_add(&sh->arrived, 1) + 1 == (uint32_t)size) {
		atomic_store(&sh->arrived, 0);
		atomic_fetch_add(&sh->generation, 1);
		futex_wake(&sh->generation);
		return;
	}
	for (int k = 0; atomic_load(&sh->generation) == gen; k++)
		if (k < 4)
			sched_yield();
		else
			futex_wait(&sh->generation, gen);
}

static void send_one(const struct command *c, int touch, uint64_t seed)
{
	struct line *mine = &sh->flag[rank];
	if (touch)
		fill(mem[rank], c->bytes, seed);
	if (c->bytes <= INLINE)
		memcpy(mine->data, mem[rank], c->bytes);
	post(mine, seq);
}

static void recv_one(const struct command *c, int touch, uint64_t seed)
{
	struct line *theirs = &sh->flag[!rank];
	await(theirs, seq);
	memcpy(rbuf, c->bytes <= INLINE ? theirs->data : mem[!rank], c->bytes);
	if (touch)
		bad += check(rbuf, c->bytes, seed);
}

static double latency(const struct command *c)
{
	int touch = !strcmp(c->mode, "touch");
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		seq++;
		if (rank == 0) {
			send_one(c, touch, i);
			recv_one(c, touch, i + 1);
		} else {
			recv_one(c, touch, i);
			send_one(c, touch, i + 1);
		}
	}
	return (double)(now_ns() - t0) / (2 * c->iters);
}

static double bandwidth(const struct command *c)
{
	int touch = !strcmp(c->mode, "touch");
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		seq++;
		if (rank == 0) {
			if (touch)
				fill(mem[0], c->bytes, i);
			for (long k = 0; k < c->window; k++) {
				struct line *l = &sh->ring[k];
				if (c->bytes <= INLINE)
					memcpy(l->data, mem[0], c->bytes);
				post(l, ringseq + 1);
			}
			await(&sh->flag[1], seq);
		} else {
			for (long k = 0; k < c->window; k++) {
				struct line *l = &sh->ring[k];
				await(l, ringseq + 1);
				memcpy(rbuf, c->bytes <= INLINE ? l->data : mem[0], c->bytes);
			}
			if (touch)
				bad += check(rbuf, c->bytes, i);
			post(&sh->flag[1], seq);
		}
		ringseq++;
	}
	post(&sh->flag[rank], seq);
	return (double)(now_ns() - t0) / (c->iters * c->window);
}

static void tcp_send(const char *b, long n)
{
	while (n > 0) {
		ssize_t k = send(sock, b, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (k > 0)
			b += k, n -= k;
		else if (k < 0 && errno != EAGAIN && errno != EINTR) {
			perror("floor: send");
			exit(2);
		}
	}
}

static void tcp_recv(char *b, long n)
{
	while (n > 0) {
		ssize_t k = recv(sock, b, n, MSG_DONTWAIT);
		if (k > 0)
			b += k, n -= k;
		else if (k == 0)
			exit(0); /* the other rank is gone */
		else if (errno != EAGAIN && errno != EINTR) {
			perror("floor: recv");
			exit(2);
		}
	}
}

static double tcp_latency(const struct command *c)
{
	long n = c->bytes > 0 ? c->bytes : 1; /* a stream has no empty message */
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		if (rank == 0) {
			tcp_send(mem[0], n);
			tcp_recv(rbuf, n);
		} else {
			tcp_recv(rbuf, n);
			tcp_send(mem[1], n);
		}
	}
	return (double)(now_ns() - t0) / (2 * c->iters);
}

static double tcp_bandwidth(const struct command *c)
{
	char ack[4] = {0};
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		for (long k = 0; k < c->window; k++)
			if (rank == 0)
				tcp_send(mem[0], c->bytes);
			else
				tcp_recv(rbuf, c->bytes);
		if (rank == 0)
			tcp_recv(ack, 4);
		else
			tcp_send(ack, 4);
	}
	return (double)(now_ns() - t0) / (c->iters * c->window);
}

static double barrier(const struct command *c)
{
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		if (size == 2) {
			post(&sh->flag[rank], ++seq);
			await(&sh->flag[!rank], seq);
		} else
			barrier_once();
	}
	return (double)(now_ns() - t0) / c->iters;
}

static double allreduce(const struct command *c)
{
	double *in = (double *)mem[rank], *out = (double *)rbuf;
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		/* Two lines in turn: nobody overwrites what the other still reads. */
		seq++;
		struct line *mine = &sh->ring[2 * (seq & 1) + rank];
		struct line *theirs = &sh->ring[2 * (seq & 1) + !rank];
		memcpy(mine->data, in, 8);
		post(mine, ringseq + i + 1);
		await(theirs, ringseq + i + 1);
		double v;
		memcpy(&v, theirs->data, 8);
		*(volatile double *)out = in[0] + v;
	}
	double ns = (double)(now_ns() - t0) / c->iters;
	ringseq += c->warmup + c->iters;
	for (int k = 0; k < 4; k++)
		post(&sh->ring[k], ringseq);
	return ns;
}

static double blocked(void)
{
	uint32_t v = atomic_load(&sh->bell);
	barrier_once();
	if (rank == 1) {
		usleep(1000000);
		atomic_fetch_add(&sh->bell, 1);
		futex_wake(&sh->bell);
	}
	if (rank != 0)
		return 0;
	int64_t t0 = now_ns(), c0 = cpu_ns();
	while (atomic_load(&sh->bell) == v)
		futex_wait(&sh->bell, v);
	return (double)(cpu_ns() - c0) / (now_ns() - t0);
}

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static void *map(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("floor: mmap");
	return p;
}

/* tcp_pair makes the two ends of a loopback connection. */
static void tcp_pair(int end[2])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
	end[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (l < 0 || end[0] < 0 || bind(l, (struct sockaddr *)&a, len) || listen(l, 1) ||
	    getsockname(l, (struct sockaddr *)&a, &len) ||
	    connect(end[0], (struct sockaddr *)&a, len) || (end[1] = accept(l, NULL, NULL)) < 0)
		die("floor: loopback connection");
	close(l);
	for (int i = 0; i < 2; i++)
		setsockopt(end[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void pin(int nth)
{
	cpu_set_t all, one;
	sched_getaffinity(0, sizeof all, &all);
	nth %= CPU_COUNT(&all);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && nth-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			if (sched_setaffinity(0, sizeof one, &one))
				die("floor: pin");
			return;
		}
}

static double run(const struct command *c)
{
	if (!strcmp(c->test, "cpu"))
		return blocked();
	if (!strcmp(c->test, "barrier"))
		return barrier(c);
	if (size != 2)
		return -1;
	barrier_once(); /* ranks read their commands at different times */
	if (!strcmp(c->test, "latency"))
		return latency(c);
	if (!strcmp(c->test, "bw"))
		return bandwidth(c);
	if (!strcmp(c->test, "tcplatency"))
		return tcp_latency(c);
	if (!strcmp(c->test, "tcpbw"))
		return tcp_bandwidth(c);
	if (!strcmp(c->test, "allreduce") && c->bytes == 8)
		return allreduce(c);
	return -1;
}

int main(int argc, char **argv)
{
	struct server s;
	struct command c;
	int end[2], pinned = argc == 4 && !strcmp(argv[3], "pin");

	if (argc < 3 || (size = atoi(argv[2])) < 2) {
		fprintf(stderr, "usage: floor DIR RANKS [pin]\n");
		return 2;
	}
	long limit = size == 2 ? MAX_BYTES : 4096;
	sh = map(sizeof *sh);
	for (int i = 0; i < 2; i++)
		memset(mem[i] = map(limit), 'a', limit);
	tcp_pair(end);
	pid_t parent = getpid();
	for (rank = 0; rank < size; rank++) {
		pid_t pid = fork();
		if (pid < 0)
			die("floor: fork");
		if (pid == 0)
			break;
	}
	if (rank == size) { /* the parent only waits */
		int status, worst = 0;
		while (wait(&status) > 0)
			if (status)
				worst = 1;
		return worst;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		return 2;
	if (pinned)
		pin(rank);
	sock = end[rank & 1];
	close(end[!(rank & 1)]);
	rbuf = map(limit);
	memset(rbuf, 'b', limit);
	serve_open(&s, argv[1], rank);

	while (serve_next(&s, &c)) {
		if (c.bytes < 0 || c.bytes > limit || c.window < 1 || c.window > MAX_WINDOW ||
		    c.iters < 1 || c.warmup < 0) {
			serve_err(&s, "command out of range");
			continue;
		}
		bad = 0;
		double value = run(&c);
		if (value < 0)
			serve_err(&s, "the floor does not have this test");
		else if (bad)
			serve_err(&s, "a message arrived with wrong contents");
		else
			serve_ok(&s, value);
	}
	return 0;
}
