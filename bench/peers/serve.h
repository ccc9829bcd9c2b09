/*
 * serve.h: how a contestant of the benchmark takes orders.
 *
 * A contestant is started once and then runs short blocks on demand, so that
 * contestants can be interleaved. Each rank reads commands from a FIFO of its
 * own and writes one answer for each to a second one:
 *
 *	DIR/RANK.in    TEST BYTES ITERS WARMUP WINDOW MODE MEMORY
 *	DIR/RANK.out   ok VALUE        or        err TEXT
 *
 * Every rank gets every command, so between two blocks all ranks sleep in
 * read(2) and none waits inside a communication library: that is what makes it
 * legitimate to leave a contestant alive while others are timed. The first line
 * of RANK.out is "hello PID CPUS", CPUS being the processors the rank may use.
 * The end of file on RANK.in ends the rank.
 *
 * VALUE is in nanoseconds for one operation (one way for a latency, one message
 * for a bandwidth), or in cores for the test "cpu".
 *
 * MODE is "osu" (buffers are written once, as the OSU benchmarks do) or "touch"
 * (the sender writes one word of every cache line before it sends, the receiver
 * reads and checks it). A collective has "check" instead of that: ITERS times it
 * runs on other contents, compares every element of the result, and the answer's
 * VALUE is 0. MEMORY matters to Weft only.
 */
#ifndef SERVE_H
#define SERVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct command {
	char test[32];
	long bytes, iters, warmup, window;
	char mode[16], memory[16];
};

struct server {
	FILE *in, *out;
};

static inline int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* cpu_ns is the processor time that this process has used. */
static inline int64_t cpu_ns(void)
{
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return ((int64_t)r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000000 +
	       ((int64_t)r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1000;
}

static inline void serve_open(struct server *s, const char *dir, int rank)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%d.in", dir, rank);
	s->in = fopen(path, "r");
	snprintf(path, sizeof path, "%s/%d.out", dir, rank);
	s->out = fopen(path, "w");
	if (!s->in || !s->out) {
		fprintf(stderr, "rank %d: cannot open the command FIFOs in %s\n", rank, dir);
		exit(2);
	}
	fprintf(s->out, "hello %d ", (int)getpid());
	cpu_set_t set;
	CPU_ZERO(&set);
	sched_getaffinity(0, sizeof set, &set);
	const char *sep = "";
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set)) {
			fprintf(s->out, "%s%d", sep, cpu);
			sep = ",";
		}
	fprintf(s->out, "\n");
	fflush(s->out);
}

/* serve_next waits for a command. It returns 0 at the end of the input. */
static inline int serve_next(struct server *s, struct command *c)
{
	char line[256];
	if (!fgets(line, sizeof line, s->in))
		return 0;
	memset(c, 0, sizeof *c);
	if (sscanf(line, "%31s %ld %ld %ld %ld %15s %15s", c->test, &c->bytes, &c->iters,
		   &c->warmup, &c->window, c->mode, c->memory) != 7)
		strcpy(c->test, "?");
	return 1;
}

static inline void serve_ok(struct server *s, double value)
{
	fprintf(s->out, "ok %.6g\n", value);
	fflush(s->out);
}

static inline void serve_err(struct server *s, const char *text)
{
	fprintf(s->out, "err %s\n", text);
	fflush(s->out);
}

/* fill writes one word into every cache line of b, different for each seed. */
static inline void fill(char *b, long bytes, uint64_t seed)
{
	if (bytes < 8)
		memset(b, (int)(seed & 0xff), bytes);
	for (long i = 0; i + 8 <= bytes; i += 64)
		*(volatile uint64_t *)(b + i) = seed + i;
}

/* check reads what fill wrote and returns the number of words that differ. */
static inline long check(const char *b, long bytes, uint64_t seed)
{
	long bad = 0;
	if (bytes < 8)
		for (long i = 0; i < bytes; i++)
			bad += (unsigned char)b[i] != (seed & 0xff);
	for (long i = 0; i + 8 <= bytes; i += 64)
		bad += *(const volatile uint64_t *)(b + i) != seed + i;
	return bad;
}

#endif
