#!/usr/bin/env bash
# The static checks. Runs all of them and fails if any complains.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=0
# check NAME COMMAND...: the command must succeed.
check() {
	local name=$1 out
	shift
	if out=$("$@" 2>&1); then
		echo "ok    $name"
	else
		printf 'FAIL  %s: %s\n%s\n' "$name" "$*" "$out"
		failed=1
	fi
}

# formatted: gofmt must have nothing to say.
formatted() {
	local files
	files=$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l) || return
	[[ -z $files ]] || { echo "run gofmt -w on:"; echo "$files"; return 1; }
}

# generated: go generate must leave every file as it is.
generated() {
	git grep -q '^//go:generate' -- '*.go' || { echo "nothing to generate"; return 0; }
	local before after
	before=$(git status --porcelain; git diff)
	go generate ./... || return
	after=$(git status --porcelain; git diff)
	[[ $before == "$after" ]] || { echo "run go generate ./... and commit what it changed:"; git status --short; return 1; }
}

in_tools() { (cd ci/tools && "$@"); }

check gofmt formatted
check vet go vet ./...
check 'vet without cgo' env CGO_ENABLED=0 go vet ./...
check staticcheck go tool -modfile=ci/tools/go.mod staticcheck ./...
check 'rules (internal/lint)' go test ./internal/lint
check 'go.mod is tidy' go mod tidy -diff
check 'ci/tools/go.mod is tidy' in_tools go mod tidy -diff
check 'go generate is clean' generated
exit $failed
