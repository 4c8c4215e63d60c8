#!/usr/bin/env bash
# Checks the models of the rendezvous, the abort and the scratch protocols (host: group.pml, p2p: p2p.pml) with spin, and that broken variants
# of them are rejected.
# Needs spin and cc. Each case: at most 1 GB of memory, the whole state space or it counts as failed. `--only WORD`: cases that hold WORD.
set -u
cd "$(dirname "$0")" || exit 2
model=$PWD/group.pml
command -v spin >/dev/null || { echo "tests/promela: spin is not installed"; exit 2; }
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
passed=0 failed=0 only=
[ "${1-}" = --only ] && only=${2-}

# check EXPECTED TEXT DEFINES: EXPECTED is "holds" or "rejected".
check() {
	local expected=$1 text=$2 defines=$3 verdict states seconds start why
	case "$text $defines" in *"$only"*) ;; *) return ;; esac
	start=$(date +%s.%N)
	rm -f pan ./*.trail
	# shellcheck disable=SC2086
	if ! spin -a $defines "$model" >spin.log 2>&1 || ! cc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=1000 -o pan pan.c 2>>spin.log; then
		verdict="does not build"
		sed 's/^/    /' spin.log
	else
		./pan -m200000 >pan.log 2>&1
		if grep -q 'errors: [1-9]' pan.log; then
			verdict=rejected
		elif grep -q 'errors: 0' pan.log && ! grep -qE 'Search not completed|max search depth too small|out of memory' pan.log; then
			verdict=holds
		else
			verdict="not decided"
		fi
	fi
	states=$(awk '/states, stored/ {print $1; exit}' pan.log)
	seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
	why=$(sed -n 's/^pan:1: \(.*\) (at depth.*/: \1/p' pan.log)
	printf '%s (%s)\n    %s, %s states, %s s%s\n' "$text" "$defines" "$verdict" "$states" "$seconds" "$why"
	if [ "$verdict" = "$expected" ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "    EXPECTED: $expected"
		grep -E '^pan:' pan.log | sed 's/^/    /'
	fi
}

check holds "2 ranks" "-DP=2 -DUSES=4 -DFAILS=2"
check holds "3 ranks" "-DP=3 -DUSES=3 -DFAILS=1"
check holds "4 ranks, one meeting" "-DP=4 -DUSES=1 -DFAILS=1"
check holds "4 ranks, no failure" "-DP=4 -DUSES=3 -DFAILS=0"
check holds "barriers between, 2 ranks" "-DP=2 -DUSES=4 -DFAILS=1 -DBARRIERS"
check holds "two shots, 3 ranks" "-DP=2 -DUSES=3 -DFAILS=1 -DTWO_SHOTS"
check holds "exchange, 2 ranks" "-DP=2 -DUSES=3 -DFAILS=1 -DEXCHANGE"
check rejected "one scratch buffer" "-DP=2 -DUSES=3 -DFAILS=0 -DONE_BUFFER"
check rejected "buffers alternate by sequence number" "-DP=2 -DUSES=4 -DFAILS=0 -DBARRIERS -DBARRIER_COUNTS"
check rejected "meets before its reads are done" "-DP=2 -DUSES=4 -DFAILS=0 -DNO_SYNC"
check rejected "abort does not wake" "-DP=2 -DUSES=2 -DFAILS=1 -DNO_WAKE"
check rejected "turn is read after the arrival" "-DP=2 -DUSES=2 -DFAILS=0 -DLATE_SEEN"
check rejected "sleeper counted after its last look" "-DP=2 -DUSES=2 -DFAILS=0 -DNO_SLEEPER_COUNT"
check rejected "descriptors not compared" "-DP=3 -DUSES=2 -DFAILS=1 -DNO_COMPARE"
check rejected "exchange with one meeting" "-DP=2 -DUSES=3 -DFAILS=0 -DEXCHANGE -DONE_MEETING"

model=${model%/*}/p2p.pml
check holds "p2p packets, 2 ranks of 2 blocks" "-DP=2 -DUSES=3 -DBLOCKS=2"
check holds "p2p packets, 3 ranks" "-DP=3 -DUSES=3"
check holds "p2p packets, 2 blocks, a failure" "-DP=2 -DUSES=2 -DBLOCKS=2 -DFAILS=1"
check holds "p2p packets, 2 ranks, later failures" "-DP=2 -DUSES=4 -DFAILS=1"
check holds "p2p pull, 2 ranks of 2 blocks" "-DP=2 -DUSES=2 -DBLOCKS=2 -DPULL"
check holds "p2p pull, 3 ranks" "-DP=3 -DUSES=2 -DPULL"
check holds "p2p pull, a failure" "-DP=2 -DUSES=2 -DBLOCKS=2 -DFAILS=1 -DPULL"
check holds "p2p two shots, 2 ranks of 2 blocks" "-DP=2 -DUSES=2 -DBLOCKS=2 -DTWO_SHOTS"
check holds "p2p two shots, 3 ranks" "-DP=3 -DUSES=2 -DTWO_SHOTS"
check holds "p2p two shots, a failure" "-DP=2 -DUSES=3 -DFAILS=1 -DTWO_SHOTS"
check rejected "p2p packets without halves" "-DP=2 -DUSES=3 -DONE_HALF"
check rejected "p2p packets, kernels end without announcements" "-DP=2 -DUSES=2 -DNO_AWAIT -DFAILS=1"
check rejected "p2p pull, peers are not asked whether they have read" "-DP=2 -DUSES=3 -DPULL -DNO_DONE"
check rejected "p2p pull reads before announcements" "-DP=2 -DUSES=2 -DPULL -DEARLY_READ"
check rejected "p2p two shots read before announcements" "-DP=2 -DUSES=2 -DTWO_SHOTS -DEARLY_READ"
check rejected "p2p descriptors not compared" "-DP=2 -DUSES=2 -DFAILS=1 -DNO_COMPARE"
check rejected "p2p spins do not look at the abort" "-DP=2 -DUSES=2 -DFAILS=1 -DNO_ABORT"
check rejected "p2p a use is a constant of the launch" "-DP=2 -DUSES=4 -DSTATIC_USE"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
