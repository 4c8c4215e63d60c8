#!/usr/bin/env bash
# How long a start takes and what a benchmark says. Reported, not judged.
. "$(dirname "$0")/lib/e2e.sh"

for p in 1 2 4; do
	succeeds "start at tp $p" 60 run "$golden/llama" --tokens 1 -n 1 --json --tp $p &&
		ok "start at tp $p: load $(json "$out" load_ms) ms, first token $(json "$out" ttft_ms) ms, process $elapsed_ms ms"
done
[ -d "$model" ] && succeeds "start of $model" 60 run "$model" --tokens 1 -n 1 --json &&
	ok "start of $model: load $(json "$out" load_ms) ms, first token $(json "$out" ttft_ms) ms, process $elapsed_ms ms"
succeeds "bench step" 60 bench step "$golden/llama" --context 32 --steps 8 --prefill 32 --json && {
	for key in decode_ms prefill_ms tokens_per_s prefill_tokens_per_s weight_bytes world_size threads; do
		json "$out" $key >"$work/value" && ok "bench step: $key $(cat "$work/value")" || not_ok "bench step: $key" missing
	done
}
succeeds "bench step, random weights" 60 bench step "$golden/llama/config.json" --random-weights 7 --batch 3 --context 16 --steps 4 --prefill 16 --tp 2 &&
	ok "bench step, random weights"
# The phases of a step are all of it, but for what the caller does between two.
succeeds "bench step, requests" 60 bench step "$golden/llama" --requests 12 --input 24 --output 8 --tp 2 --json && {
	for kind in mixed decode; do
		sum=$(for phase in plan wake prepare meet launch wait report commit apply; do json "$out" ${kind}_us 1 $phase; echo; done | awk 'NF {s += $1; n++} END {print n, s / 1000}')
		if awk -v ms="$(json "$out" ${kind}_ms)" '{exit !($1 == 9 && $2 > 0.5 * ms && $2 <= ms)}' <<<"$sum"; then ok "bench step, requests: phases of $kind steps"
		else not_ok "bench step, requests: phases of $kind steps" "$sum of $(json "$out" ${kind}_ms) ms"; fi
	done
}
succeeds "bench peak" 60 bench peak --json && ok "bench peak: $(head -c 200 "$out")"
succeeds "bench collective" 60 bench collective --tp 3 --rows 1,32 --hidden 64 --repeat 20 --json &&
	ok "bench collective: p50 $(json "$out" results 0 p50_us) us, $(json "$out" results 1 p50_us) us"
succeeds "bench gemm" 60 bench gemm "$golden/llama" --tp 1,2 --rows 1,16 --json && ok "bench gemm: $(json "$out" results 0 us) us"
succeeds "bench gemm of one device" 60 bench gemm "$golden/llama" --tp 2,4 --devices 0 --rows 1 --json && ok "bench gemm of one device"
refuses "bench gemm of a degree that is not legal" 3 'tp 2' bench gemm "$golden/llama-9-heads" --tp 2
finish
