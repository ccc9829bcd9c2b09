#!/usr/bin/env bash
# Runs every fuzz target of the repository in turn.
#
#   ci/fuzz.sh TIME     for example: ci/fuzz.sh 10s
set -uo pipefail
cd "$(dirname "$0")/.."
time=${1:?usage: ci/fuzz.sh TIME}

failed=0 ran=0
while IFS=: read -r file target; do
	ran=$((ran + 1))
	echo "== $target (${file%/*}) for $time"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./${file%/*}" </dev/null || failed=$((failed + 1))
done < <(git ls-files -co --exclude-standard '*_test.go' |
	xargs -r grep -oHE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/' | sort -u)

if (( ran == 0 )); then
	echo "no fuzz target found"
	exit 1
fi
echo "fuzz targets: $((ran - failed)) passed, $failed failed"
(( failed == 0 ))
