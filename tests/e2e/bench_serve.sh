#!/usr/bin/env bash
# tandem bench serve: on a server of its own, on one that runs, and on what is none.
. "$(dirname "$0")/lib/e2e.sh"

m=$golden/llama
refuses "--rate 0" 2 "from 0.001 to inf" bench serve "$m" --rate 0
refuses "--rate nan" 2 "not a number" bench serve "$m" --rate nan
refuses "--input-len 5:4" 2 "16:256" bench serve "$m" --input-len 5:4
refuses "--output-len x" 2 "output-len" bench serve "$m" --output-len x
refuses "--goodput itl:1" 2 "ttft:MS" bench serve "$m" --goodput itl:1
refuses "--endpoint edits" 2 "completions|chat" bench serve "$m" --endpoint edits
refuses "https" 2 "TLS" bench serve https://127.0.0.1:1
refuses "a URL and --server" 2 "model folder" bench serve http://127.0.0.1:1 --server "--tp 2"
refuses "nobody listens" 3 "connection refused" bench serve http://127.0.0.1:1
printf '10 2\n' >"$work/lengths"
printf '10 2\nten 2\n' >"$work/bad"
refuses "lengths that are none" 3 "bad, line 2: not a pair" bench serve "$m" --lengths "$work/bad"

# On golden/llama: no tokenizer, so that ids are what comes back.
succeeds "a server of its own" 60 bench serve "$m" --server "--tp 2" --token-ids --requests 40 --rate 200 --seed 3 --input-len 2:30 --output-len 1:20 --json && {
	cp "$out" "$work/report"
	equal "all requests complete" "completed" "$(json "$work/report" completed),$(json "$work/report" failed)" 40,0
	equal "each has a first token" "count" "$(json "$work/report" ttft_ms count)" 40
	equal "each has an end" "count" "$(json "$work/report" e2el_ms count)" 40
	tokens=$(json "$work/report" output_tokens)
	equal "a gap between each two tokens" "count" "$(json "$work/report" itl_ms count)" $((tokens - 40))
	for what in ttft itl tpot e2el; do
		for key in p50 p90 p99 max; do json "$work/report" ${what}_ms $key; done >"$work/ordered"
		sort -g -c "$work/ordered" 2>/dev/null && ok "percentiles of $what ascend" || not_ok "percentiles of $what ascend" "$(tr '\n' ' ' <"$work/ordered")"
	done
}
succeeds "the same seed" 60 bench serve "$m" --token-ids --requests 40 --seed 3 --input-len 2:30 --output-len 1:20 --concurrency 3 --json &&
	equal "the same seed is the same load" "tokens" "$(json "$out" input_tokens),$(json "$out" output_tokens)" "$(json "$work/report" input_tokens),$tokens"
succeeds "lengths from a file" 60 bench serve "$m" --token-ids --requests 7 --lengths "$work/lengths" --json &&
	equal "lengths from a file" "tokens" "$(json "$out" input_tokens),$(json "$out" output_tokens)" 70,14
run 60 bench serve "$m" --requests 2
grep -q 'needs --token-ids$' "$err" && [ "$rc" -eq 3 ] && ok "no tokenizer and no --token-ids" || not_ok "no tokenizer and no --token-ids" "exit $rc: $(cat "$err")"

# A server that runs, with a key; what goes wrong is told by kind.
log=$work/server
: >"$log"
"$tandem" serve "$m" --port 0 --api-key sesame --max-queue 2 --max-running 1 2>"$log" &
pid=$!
for ((i = 0; i < 300; i++)); do
	port=$(sed -n 's/^tandem: serving .* on http:\/\/127\.0\.0\.1:\([0-9]*\) .*/\1/p' "$log")
	[ -n "$port" ] && break
	sleep 0.1
done
url=http://127.0.0.1:$port
refuses "a key is missing" 3 "api-key" bench serve "$url"
refuses "a model that is not there" 3 "HTTP 404" bench serve "$url" --api-key sesame --served-model-name other
refuses "a prompt that is too long" 3 "HTTP 400" bench serve "$url" --api-key sesame --token-ids --input-len 5000
succeeds "a queue that is full" 60 bench serve "$url/" --api-key sesame --token-ids --requests 64 --output-len 100 --goodput ttft:60000,e2el:60000 && {
	grep -Eq '^failed [0-9]+: HTTP 429$' "$out" && ok "429 is told" || not_ok "429 is told" "$(cat "$out")"
	# The limits are wide, so that all which completed are good.
	equal "goodput counts what completed" "it" "$(sed -n 's/^goodput .*: \([0-9]*\) kept.*/\1/p' "$out")" "$(sed -n 's/^\([0-9]*\) of .*/\1/p' "$out")"
}
succeeds "one at a time" 60 bench serve "$url" --api-key sesame --token-ids --requests 10 --concurrency 1 --output-len 10 --json &&
	equal "one at a time: nothing is turned away" "completed" "$(json "$out" completed)" 10
kill $pid
wait $pid 2>/dev/null

if [ -f "$model/model.safetensors" ]; then
	succeeds "chat" 60 bench serve "$model" --endpoint chat --requests 10 --input-len 5:50 --output-len 12 --json && equal "chat" "completed" "$(json "$out" completed)" 10
else
	skip "chat" "no model in $model"
fi
equal "no server is left behind" "it" "$(pgrep -P $$ -x tandem)" ""
finish
