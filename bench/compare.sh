#!/usr/bin/env bash
# Builds the contestants and compares Weft with Open MPI and MPICH; results go
# to bench/out. Options: bench/compare.sh --help
#
# Debian packages that are missing are installed, after saying which. When that
# fails, the comparison still runs, and the rows of a missing peer say why.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'compare: %s\n' "$*" >&2; }

ci/setup.sh compare || say "going on with what is installed"

peers=bench/peers
bin=$peers/bin
mkdir -p "$bin" bin/bench
gcc -O2 -Wall -Wextra -o "$bin/floor" $peers/floor.c
gcc -O2 -o "$bin/nothing" $peers/nothing.c
for mpi in openmpi mpich; do
	rm -f "$bin/contestant-$mpi" "$bin/empty-$mpi"
	if ! command -v "mpicc.$mpi" >/dev/null; then
		say "there is no mpicc.$mpi: its rows will say so"
		continue
	fi
	# MPICH's MPI_STATUSES_IGNORE upsets -Wstringop-overflow.
	"mpicc.$mpi" -O2 -Wall -Wno-stringop-overflow -o "$bin/contestant-$mpi" $peers/contestant.c $peers/collectives.c
	"mpicc.$mpi" -O2 -Wall -o "$bin/empty-$mpi" $peers/empty.c
done
CGO_ENABLED=0 go build -o bin/weftrun ./cmd/weftrun # as make build does
go build -o bin/bench/ ./bench/compare ./bench/osu ./bench/osu/empty

exec bin/bench/compare "$@"
