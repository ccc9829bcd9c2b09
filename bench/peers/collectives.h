/*
 * collectives.h: the collectives of contestant.c. bench/osu/coll.go is their twin.
 *
 * BYTES of a command is
 *
 *	bcast                      the length of the buffer
 *	reduce, allreduce, scan    what each rank puts in, and what comes out
 *	reducescatter              what each rank puts in; each gets an equal part
 *	allgather, gather          what each rank puts in; SIZE times that comes out
 *	scatter                    what each rank gets
 *	alltoall                   what each rank sends to all, itself included
 *
 * as in the OSU Micro-Benchmarks, but for alltoall, where they give what goes to each.
 * Reductions sum doubles, the others move bytes; the root is rank 0. A name with an
 * i in front is the nonblocking form: start it, wait for it.
 */
#ifndef COLLECTIVES_H
#define COLLECTIVES_H

#include "serve.h"

#include <mpi.h>

struct memory {
	char *send, *recv;
	long send_bytes, recv_bytes;
};

/* collective runs c, or says with *err why not; every rank says the same.
 * The result is in nanoseconds for one operation. */
double collective(const struct command *c, const struct memory *m, const char **err);

#endif
