/*
 * contestant.c: the MPI side of the comparison. One source, compiled once with
 * Open MPI and once with MPICH. It takes orders as serve.h describes. Names,
 * loops and buffers follow the OSU Micro-Benchmarks; the code is our own.
 *
 *	mpirun -np 2 contestant DIR
 *
 * Tests: latency (ping-pong), bw (a window of nonblocking sends, then an
 * acknowledgement; with 8 bytes this is the message rate), barrier, allreduce
 * (MPI_DOUBLE, MPI_SUM), cpu (processor time of rank 0 while it waits a second
 * in MPI_Recv).
 */
#include "serve.h"

#include <mpi.h>

enum { MAX_BYTES = 16 << 20, MAX_WINDOW = 64 };

static int rank, size;
static char *sbuf, *rbuf;
static long bad; /* words that arrived wrong in the current command */

static char *buffer(void)
{
	void *p = NULL;
	if (posix_memalign(&p, 4096, MAX_BYTES)) {
		fprintf(stderr, "rank %d: no memory for a buffer of %d bytes\n", rank, MAX_BYTES);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	return p;
}

static double latency(const struct command *c)
{
	int touch = !strcmp(c->mode, "touch");
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		if (rank == 0) {
			if (touch)
				fill(sbuf, c->bytes, i);
			MPI_Send(sbuf, c->bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
			MPI_Recv(rbuf, c->bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			if (touch)
				bad += check(rbuf, c->bytes, i + 1);
		} else if (rank == 1) {
			MPI_Recv(rbuf, c->bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			if (touch) {
				bad += check(rbuf, c->bytes, i);
				fill(sbuf, c->bytes, i + 1);
			}
			MPI_Send(sbuf, c->bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
		}
	}
	return (double)(now_ns() - t0) / (2 * c->iters);
}

static double bandwidth(const struct command *c)
{
	MPI_Request req[MAX_WINDOW];
	int touch = !strcmp(c->mode, "touch");
	int64_t t0 = 0;
	char ack[4] = {0};
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		if (rank == 0) {
			if (touch)
				fill(sbuf, c->bytes, i);
			for (long k = 0; k < c->window; k++)
				MPI_Isend(sbuf, c->bytes, MPI_CHAR, 1, 100, MPI_COMM_WORLD, &req[k]);
			MPI_Waitall(c->window, req, MPI_STATUSES_IGNORE);
			MPI_Recv(ack, 4, MPI_CHAR, 1, 101, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else if (rank == 1) {
			for (long k = 0; k < c->window; k++)
				MPI_Irecv(rbuf, c->bytes, MPI_CHAR, 0, 100, MPI_COMM_WORLD, &req[k]);
			MPI_Waitall(c->window, req, MPI_STATUSES_IGNORE);
			if (touch)
				bad += check(rbuf, c->bytes, i);
			MPI_Send(ack, 4, MPI_CHAR, 0, 101, MPI_COMM_WORLD);
		}
	}
	return (double)(now_ns() - t0) / (c->iters * c->window);
}

static double barrier(const struct command *c)
{
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		MPI_Barrier(MPI_COMM_WORLD);
	}
	return (double)(now_ns() - t0) / c->iters;
}

static double allreduce(const struct command *c)
{
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		MPI_Allreduce(sbuf, rbuf, c->bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	}
	return (double)(now_ns() - t0) / c->iters;
}

static double blocked(void)
{
	char b[8] = {0};
	if (rank == 1) {
		usleep(1000000);
		MPI_Send(b, 8, MPI_CHAR, 0, 2, MPI_COMM_WORLD);
	}
	if (rank != 0)
		return 0;
	int64_t t0 = now_ns(), c0 = cpu_ns();
	MPI_Recv(b, 8, MPI_CHAR, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return (double)(cpu_ns() - c0) / (now_ns() - t0);
}

int main(int argc, char **argv)
{
	struct server s;
	struct command c;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 2) {
		fprintf(stderr, "usage: contestant DIR\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	if (size == 2) {
		sbuf = buffer();
		rbuf = buffer();
		memset(sbuf, 'a', MAX_BYTES);
		memset(rbuf, 'b', MAX_BYTES);
	} else {
		sbuf = calloc(1, 1 << 20);
		rbuf = calloc(1, 1 << 20);
	}
	long limit = size == 2 ? MAX_BYTES : 1 << 20;
	MPI_Barrier(MPI_COMM_WORLD); /* an answer to hello means: the job is up */
	serve_open(&s, argv[1], rank);

	while (serve_next(&s, &c)) {
		if (c.bytes < 0 || c.bytes > limit || c.window < 1 || c.window > MAX_WINDOW ||
		    c.iters < 1 || c.warmup < 0) {
			serve_err(&s, "command out of range");
			continue;
		}
		bad = 0;
		double value = -1;
		if (!strcmp(c.test, "cpu"))
			value = blocked();
		else if (!strcmp(c.test, "barrier"))
			value = barrier(&c);
		else {
			/* Ranks read their commands at different times. */
			MPI_Barrier(MPI_COMM_WORLD);
			if (!strcmp(c.test, "latency") && size == 2)
				value = latency(&c);
			else if (!strcmp(c.test, "bw") && size == 2)
				value = bandwidth(&c);
			else if (!strcmp(c.test, "allreduce"))
				value = allreduce(&c);
		}
		if (value < 0)
			serve_err(&s, "unknown test");
		else if (bad)
			serve_err(&s, "a message arrived with wrong contents");
		else
			serve_ok(&s, value);
	}
	MPI_Finalize();
	return 0;
}
