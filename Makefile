# Every target does its own set-up (ci/setup.sh says what it installs) and
# works a second time without the network.

BIN  := bin
TOOL := go tool -modfile=ci/tools/go.mod

# What runs tests: CI takes gotestsum, which also lists the tests that were skipped, and why.
GOTEST ?= go test

# What `make demo` runs: make demo N=2 ARGS='-in my.png'
N    ?= 4
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: test-zmq test-cluster help build demo test race nocgo lint compare test-rdma compare-rdma softroce fuzz cover setup clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@ci/setup.sh go

build: setup ## put weftrun, weft and the examples into bin/
	go build -o $(BIN)/ ./cmd/... ./examples/...
	CGO_ENABLED=0 go build -o $(BIN)/ ./cmd/weftrun # without the C library: it starts faster, and on any host

demo: build ## solve a heat problem on four ranks and draw the answer
	$(BIN)/weftrun -n $(N) $(BIN)/heat2d -check -show -size 640 -steps 800 $(ARGS)

test: setup ## run all tests
	$(GOTEST) ./...

race: setup ## run all tests under the race detector
	@ci/setup.sh cc
	$(GOTEST) -race -timeout 20m ./...

nocgo: setup ## build and test without cgo
	CGO_ENABLED=0 go build ./...
	CGO_ENABLED=0 $(GOTEST) ./...

lint: setup ## gofmt, vet, staticcheck, tidy, and this repository's own rules
	@ci/setup.sh tools
	ci/lint.sh

compare: setup ## measure against Open MPI and MPICH; ARGS=--quick for a short run
	bench/compare.sh $(ARGS)

fuzz: setup ## run each fuzz target for FUZZTIME (default 10s)
	ci/fuzz.sh $(or $(FUZZTIME),10s)

test-zmq: setup ## test the control plane over ZeroMQ, which builds with -tags zmq have, and compare it with the one over TCP
	@ci/setup.sh cc tools zmq
	go vet -tags zmq ./cgo/zmq ./cmd/...
	$(TOOL) staticcheck -tags zmq ./cgo/zmq ./cmd/...
	CGO_ENABLED=0 go test -tags zmq ./cgo/zmq
	go test -race -tags zmq ./cgo/zmq
	go build -tags zmq -o $(BIN)/zmq/ ./cmd/weft ./cmd/weftrun
	bash -c 'ulimit -n 4096 && exec $(BIN)/zmq/weft bench control'

test-cluster: ## run jobs on several hosts (network namespaces), under ssh and batch systems; needs root
	@ci/setup.sh go cluster
	ci/cluster/test.sh $(ARGS)

test-rdma: ## run all that wants an RDMA device: on this host's, or in VMs with soft-RoCE; ARGS=STEP...
	ci/softroce/test.sh $(ARGS)

compare-rdma: setup ## measure verbs against perftest on an RDMA device, as test-rdma; ARGS='--rounds 3' for a short run
	bench/rdma.sh $(ARGS)

softroce: ## run CMD='...' where there is an RDMA device: in a VM with soft-RoCE, if need be
	@ci/softroce/run.sh $(ARGS) '$(subst ','\'',$(value CMD))'

cover: setup ## run all tests and write out/cover.html
	@mkdir -p out
	go test -coverpkg=./... -coverprofile=out/cover.out ./...
	go tool cover -html=out/cover.out -o out/cover.html
	@go tool cover -func=out/cover.out | tail -n 1
	@echo "open out/cover.html"

clean: ## remove what the other targets made
	rm -rf $(BIN) out
