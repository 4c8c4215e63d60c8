#!/usr/bin/env bash
# Every fault point on every rank of 2 and 4: an answer within the deadline, with the right code.
. "$(dirname "$0")/lib/e2e.sh"

timeout_ms=1500
limit_ms=$((timeout_ms * 2 + 3000)) # the deadline, a shutdown that waits once more, and a busy machine

expected_code() { # POINT RANK KIND
	case $1:$3 in
	shutdown:*) echo 0 ;;               # the answer is already out
	open:stall*) echo 0 ;;              # a device may take four times the deadline to open
	sample:stall*) echo 0 ;;            # nobody waits for the sampler but the caller
	sample:*) [ "$2" -eq 0 ] || { echo 0; return; } ;; # sampling happens once, beside rank 0
	esac
	case $1:$3 in
	shutdown:* | open:stall* | sample:stall*) ;;
	*:oom) echo 4 ;;
	*) echo 5 ;;
	esac
}

for p in 2 4; do
	for point in open load reserve barrier ready kernel sample shutdown; do
		for rank in $(seq 0 $((p - 1))); do
			for kind in error oom stall:4000 exit; do
				seq=1
				case $point in open | shutdown) seq=0 ;; esac
				name="fault tp $p $point rank $rank $kind"
				run 15 run "$golden/llama" --tokens 1,2,3 -n 4 --json --ignore-eos --tp $p --timeout $timeout_ms --fault "rank=$rank,at=$point,seq=$seq,kind=$kind"
				want=$(expected_code $point "$rank" $kind)
				if [ "$rc" -ne "$want" ]; then not_ok "$name" "exit $rc, not $want: $(head -c 300 "$err" | tr '\n' '|')"
				elif [ "$elapsed_ms" -gt $limit_ms ]; then not_ok "$name" "$elapsed_ms ms, more than $limit_ms"
				elif [ "$want" -ne 0 ] && ! one_line; then not_ok "$name" "not one clear line: $(head -c 300 "$err" | tr '\n' '|')"
				elif [ "$want" -eq 0 ] && ! json "$out" tokens >"$work/value"; then not_ok "$name" "no answer"
				else ok "$name"; fi
			done
		done
	done
done
finish
