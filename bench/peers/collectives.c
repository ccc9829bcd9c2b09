#include "collectives.h"

static int rank, size;

/* An operation works on n elements of one rank (see collectives.h) of a type. */
typedef void operation(const struct memory *m, int n, MPI_Request *req);

#define WORLD MPI_COMM_WORLD

static void bcast(const struct memory *m, int n, MPI_Request *req)
{
	if (req)
		MPI_Ibcast(m->recv, n, MPI_CHAR, 0, WORLD, req);
	else
		MPI_Bcast(m->recv, n, MPI_CHAR, 0, WORLD);
}

static void allreduce(const struct memory *m, int n, MPI_Request *req)
{
	if (req)
		MPI_Iallreduce(m->send, m->recv, n, MPI_DOUBLE, MPI_SUM, WORLD, req);
	else
		MPI_Allreduce(m->send, m->recv, n, MPI_DOUBLE, MPI_SUM, WORLD);
}

static void alltoall(const struct memory *m, int n, MPI_Request *req)
{
	if (req)
		MPI_Ialltoall(m->send, n / size, MPI_CHAR, m->recv, n / size, MPI_CHAR, WORLD, req);
	else
		MPI_Alltoall(m->send, n / size, MPI_CHAR, m->recv, n / size, MPI_CHAR, WORLD);
}

static void reduce(const struct memory *m, int n, MPI_Request *req)
{
	(void)req;
	MPI_Reduce(m->send, m->recv, n, MPI_DOUBLE, MPI_SUM, 0, WORLD);
}

static void reducescatter(const struct memory *m, int n, MPI_Request *req)
{
	(void)req;
	MPI_Reduce_scatter_block(m->send, m->recv, n / size, MPI_DOUBLE, MPI_SUM, WORLD);
}

static void scan(const struct memory *m, int n, MPI_Request *req)
{
	(void)req;
	MPI_Scan(m->send, m->recv, n, MPI_DOUBLE, MPI_SUM, WORLD);
}

static void allgather(const struct memory *m, int n, MPI_Request *req)
{
	(void)req;
	MPI_Allgather(m->send, n, MPI_CHAR, m->recv, n, MPI_CHAR, WORLD);
}

static void gather(const struct memory *m, int n, MPI_Request *req)
{
	(void)req;
	MPI_Gather(m->send, n, MPI_CHAR, m->recv, n, MPI_CHAR, 0, WORLD);
}

static void scatter(const struct memory *m, int n, MPI_Request *req)
{
	(void)req;
	MPI_Scatter(m->send, n, MPI_CHAR, m->recv, n, MPI_CHAR, 0, WORLD);
}

/* Element i of a result is the sum of element j of the ranks first to last. */
struct origin {
	int first, last;
	long j;
};

static struct origin of_root(long n, long i) { (void)n; return (struct origin){0, 0, i}; }
static struct origin of_all(long n, long i) { (void)n; return (struct origin){0, size - 1, i}; }
static struct origin of_lower(long n, long i) { (void)n; return (struct origin){0, rank, i}; }
static struct origin of_part(long n, long i) { return (struct origin){0, size - 1, rank * (n / size) + i}; }
static struct origin of_each(long n, long i) { return (struct origin){i / n, i / n, i % n}; }
static struct origin of_slice(long n, long i) { return (struct origin){0, 0, rank * n + i}; }

static struct origin of_pair(long n, long i)
{
	long part = n / size;
	return (struct origin){i / part, i / part, rank * part + i % part};
}

/* What an operation takes and gives in elements: n, or n a rank, or n / size. */
enum extent { ONE, EACH, PART };

static const struct kind {
	const char *name;
	operation *run;
	int numbers;              /* doubles, not bytes */
	int nonblocking;          /* has that form */
	int at_root;              /* only the root has a result */
	enum extent sends, gives;
	struct origin (*from)(long n, long i);
} kinds[] = {
	{"bcast", bcast, 0, 1, 0, ONE, ONE, of_root},
	{"allreduce", allreduce, 1, 1, 0, ONE, ONE, of_all},
	{"alltoall", alltoall, 0, 1, 0, ONE, ONE, of_pair},
	{"reduce", reduce, 1, 0, 1, ONE, ONE, of_all},
	{"reducescatter", reducescatter, 1, 0, 0, ONE, PART, of_part},
	{"scan", scan, 1, 0, 0, ONE, ONE, of_lower},
	{"allgather", allgather, 0, 0, 0, ONE, EACH, of_each},
	{"gather", gather, 0, 0, 1, ONE, EACH, of_each},
	{"scatter", scatter, 0, 0, 0, EACH, ONE, of_slice},
};

static long extent(enum extent e, long n)
{
	return e == EACH ? n * size : e == PART ? n / size : n;
}

/* input is element j of what a rank sends: a small whole number, so that sums are exact. */
static int input(int from, long j, int seed)
{
	uint32_t h = ((uint32_t)j * 2654435761u) ^ ((uint32_t)from * 2246822519u) ^ ((uint32_t)seed * 3266489917u);
	return h >> 24;
}

static void once(const struct kind *k, const struct memory *m, int n, int nonblocking)
{
	MPI_Request req;
	k->run(m, n, nonblocking ? &req : NULL);
	if (nonblocking)
		MPI_Wait(&req, MPI_STATUS_IGNORE);
}

/* verify runs the operation on fresh contents and returns the number of elements
 * that are wrong after it. */
static long verify(const struct kind *k, const struct memory *m, long n, int nonblocking, int seed)
{
	long sent = extent(k->sends, n), given = extent(k->gives, n), bad = 0;
	memset(m->recv, 0xee, given * (k->numbers ? 8 : 1));
	for (long i = 0; i < sent; i++)
		if (k->numbers)
			((double *)m->send)[i] = input(rank, i, seed);
		else
			m->send[i] = input(rank, i, seed);
	if (k->run == bcast && rank == 0)
		memcpy(m->recv, m->send, n);
	once(k, m, n, nonblocking);
	if (k->at_root && rank != 0)
		return 0;
	for (long i = 0; i < given; i++) {
		struct origin o = k->from(n, i);
		double want = 0;
		for (int q = o.first; q <= o.last; q++)
			want += input(q, o.j, seed);
		bad += k->numbers ? ((double *)m->recv)[i] != want : (unsigned char)m->recv[i] != want;
	}
	return bad;
}

double collective(const struct command *c, const struct memory *m, const char **err)
{
	MPI_Comm_rank(WORLD, &rank);
	MPI_Comm_size(WORLD, &size);
	const struct kind *k = NULL;
	int nonblocking = 0;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !k; i++) {
		if (!strcmp(c->test, kinds[i].name))
			k = &kinds[i];
		else if (kinds[i].nonblocking && c->test[0] == 'i' && !strcmp(c->test + 1, kinds[i].name))
			k = &kinds[i], nonblocking = 1;
	}
	*err = NULL;
	if (!k) {
		*err = "unknown test";
		return 0;
	}
	if (extent(k->sends, c->bytes) > m->send_bytes || extent(k->gives, c->bytes) > m->recv_bytes) {
		*err = "command out of range";
		return 0;
	}
	long n = c->bytes / (k->numbers ? 8 : 1);
	if ((k->gives == PART || k->run == alltoall) && n % size) {
		*err = "the ranks' parts are not of one length";
		return 0;
	}
	MPI_Barrier(WORLD); /* ranks read their commands at different times */
	if (!strcmp(c->mode, "check")) {
		long bad = 0;
		for (int i = 0; i < c->iters; i++)
			bad += verify(k, m, n, nonblocking, i);
		if (bad)
			*err = "the result is wrong";
		return 0;
	}
	int64_t t0 = 0;
	for (long i = 0; i < c->warmup + c->iters; i++) {
		if (i == c->warmup)
			t0 = now_ns();
		once(k, m, n, nonblocking);
	}
	return (double)(now_ns() - t0) / c->iters;
}
