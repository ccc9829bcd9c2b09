#!/usr/bin/env bash
# Measures Weft over verbs beside perftest on one RDMA device, and prints the table
# of ratios and targets: the host's own device where there is one, else a
# soft-RoCE device in a VM (ci/softroce). Options go to bench/rdma: see
# bench/rdma.sh --help. Results: out/rdma.json.
set -euo pipefail
cd "$(dirname "$0")/.."

ci/setup.sh go cc softroce
mkdir -p out bin/bench
go build -o bin/ ./cmd/weft
CGO_ENABLED=0 go build -o bin/ ./cmd/weftrun # as make build
go build -o bin/bench/ ./bench/osu ./bench/rdma
exec ci/softroce/run.sh --timeout 1200 --require-traffic -- bin/bench/rdma --out out/rdma.json "$@"
