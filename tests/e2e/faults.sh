#!/usr/bin/env bash
# Every fault point on every rank of 2 and 4: an answer in seconds, with the right code.
. "$(dirname "$0")/lib/e2e.sh"

limit_ms=6000 # twice the deadline of a stall, for a shutdown that waits once more, and 3 s for a busy machine

timeout_ms() { # KIND CODE
	case $1:$2 in
	stall*:0) echo 3000 ;; # less than the stall, for which nobody waits
	stall*) echo 1500 ;;
	*) echo 30000 ;; # not found by the deadline: it is one that no busy machine reaches
	esac
}

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
				want=$(expected_code $point "$rank" $kind)
				run 15 run "$golden/llama" --tokens 1,2,3 -n 4 --json --ignore-eos --tp $p --timeout "$(timeout_ms $kind "$want")" --fault "rank=$rank,at=$point,seq=$seq,kind=$kind"
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
