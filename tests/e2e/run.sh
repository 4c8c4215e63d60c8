#!/usr/bin/env bash
# The program from outside. Needs bash, awk and coreutils.
#
#   tests/e2e/run.sh [-b BUILD] [-m MODEL] [SUITE...]
#
# BUILD holds the program `tandem` and `tests/e2e/json_get` (make e2e builds both); default: build. MODEL is the model folder with a
# tokenizer that the suites sha, golden and signals also use; default: models/demo, left out if it is not there. SUITE: the
# files suite_*.sh here; default: all. Each case prints `ok NAME`, `not ok NAME` or `skip NAME: why`.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=build
model=models/demo
while getopts b:m: option; do
	case $option in
	b) build=$OPTARG ;;
	m) model=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
tandem=$build/tandem
json_get=$build/tests/e2e/json_get
golden=tests/golden
for program in "$tandem" "$json_get"; do
	[ -x "$program" ] || { echo "$program: missing; run make e2e" >&2; exit 2; }
done
work=$(mktemp -d "${TMPDIR:-/tmp}/tandem-e2e.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
. tests/e2e/lib.sh

[ $# -gt 0 ] || set -- help input models sha golden signals faults startup
for suite; do
	file=tests/e2e/suite_$suite.sh
	[ -r "$file" ] || { echo "$suite: no such suite" >&2; exit 2; }
	echo "# $suite"
	. "$file"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
