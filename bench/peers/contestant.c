/*
 * contestant.c: the MPI side of the comparison. One source, compiled once with
 * Open MPI and once with MPICH. It takes orders as serve.h describes. Names,
 * loops and buffers follow the OSU Micro-Benchmarks; the code is our own.
 *
 *	mpirun -np 2 contestant DIR
 *
 * Tests: latency (ping-pong), bw (a window of nonblocking sends, then an
 * acknowledgement; with 8 bytes this is the message rate), barrier, cpu
 * (processor time of rank 0 while it waits a second in MPI_Recv), and those of
 * collectives.h.
 */
#include "collectives.h"

#include <mpi.h>

enum { MAX_BYTES = 16 << 20, MAX_CROWD = 4 << 20, MAX_MANY = 1 << 20, MAX_WINDOW = 64 };

static int rank, size;
static char *sbuf, *rbuf;
static long bad; /* words that arrived wrong in the current command */

/* buffer returns memory of which every page has been touched. */
static char *buffer(long bytes, int fill)
{
	void *p = NULL;
	if (posix_memalign(&p, 4096, bytes)) {
		fprintf(stderr, "rank %d: no memory for a buffer of %ld bytes\n", rank, bytes);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	return memset(p, fill, bytes);
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
	struct memory mem = {.send_bytes = MAX_MANY, .recv_bytes = MAX_MANY};
	if (size == 2)
		mem.send_bytes = mem.recv_bytes = MAX_BYTES;
	else if (size <= 8)
		mem.send_bytes = MAX_CROWD, mem.recv_bytes = (long)size * MAX_CROWD;
	mem.send = sbuf = buffer(mem.send_bytes, 'a');
	mem.recv = rbuf = buffer(mem.recv_bytes, 'b');
	MPI_Barrier(MPI_COMM_WORLD); /* an answer to hello means: the job is up */
	serve_open(&s, argv[1], rank);

	while (serve_next(&s, &c)) {
		if (c.bytes < 0 || c.bytes > mem.send_bytes || c.window < 1 || c.window > MAX_WINDOW ||
		    c.iters < 1 || c.warmup < 0) {
			serve_err(&s, "command out of range");
			continue;
		}
		bad = 0;
		const char *err = NULL;
		double value;
		if (!strcmp(c.test, "barrier"))
			value = barrier(&c);
		else if (size != 2 || (strcmp(c.test, "cpu") && strcmp(c.test, "latency") && strcmp(c.test, "bw")))
			value = collective(&c, &mem, &err);
		else if (!strcmp(c.test, "cpu"))
			value = blocked();
		else {
			MPI_Barrier(MPI_COMM_WORLD); /* ranks read their commands at different times */
			value = !strcmp(c.test, "latency") ? latency(&c) : bandwidth(&c);
		}
		if (bad)
			err = "a message arrived with wrong contents";
		if (err)
			serve_err(&s, err);
		else
			serve_ok(&s, value);
	}
	MPI_Finalize();
	return 0;
}
