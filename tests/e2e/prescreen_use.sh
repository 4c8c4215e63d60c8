#!/usr/bin/env bash
# From measuring to serving: prescreen a model, run it with the whitelist: the same text and the same bits; refusals; what flips; reports anew.
. "$(dirname "$0")/lib/e2e.sh"

m=$golden/llama
account=tests/data/prescreen/account.json
tokens=1,2,3,4,5,6,7,8,9

# Everything that is not slower by far is kept, and nothing has to be confirmed in a chain, so that the whitelist has entries; the machine may be busy.
screen=$work/screen
if succeeds "prescreen" 60 prescreen "$m" --tp 1,2 --rows 1,2,8 --families attn,mlp,lm_head --quick --no-chain --keep 1 --reject 0.5 --budget 25 --out "$screen" --json; then
	ok "prescreen"
	for file in prescreen.json whitelist.json report.md report.html; do
		[ -s "$screen/$file" ] && ok "prescreen: $file" || not_ok "prescreen: $file" "not written"
	done
	whitelist=$screen/whitelist.json
	equal "prescreen: entries are marked" count "$(grep -c '"where": "not confirmed: TP' "$whitelist")" "$(grep -c '"kernel"' "$whitelist")"
	plain=$(sum_logits "$m" --tokens $tokens)
	for p in 1 2; do
		equal "logits with the whitelist, tp $p" hash "$(sum_logits "$m" --tokens $tokens --tp $p --whitelist "$whitelist")" "$plain"
		succeeds "run" 20 run "$m" --tokens $tokens -n 12 --ignore-eos --json && want=$(json "$out" tokens)
		if succeeds "run with the whitelist, tp $p" 20 run "$m" --tokens $tokens -n 12 --ignore-eos --json --tp $p --whitelist "$whitelist" --explain-dispatch; then
			equal "run with the whitelist, tp $p" tokens "$(json "$out" tokens)" "$want"
			# decode has one row: an entry for it must be taken
			expected=0 white=$(grep -o '"why":"whitelist' "$out" | wc -l) entries=$(grep -c '"kernel"' "$whitelist")
			for i in $(seq 0 $((entries - 1))); do
				case "$(json "$whitelist" entries "$i" m_low) $(json "$whitelist" entries "$i" where)" in "1 "*"TP$p "*) expected=1 ;; esac
			done
			[ "$white" -ge $expected ] && ok "dispatch by the whitelist, tp $p: $white by $entries entries" ||
				not_ok "dispatch by the whitelist, tp $p" "$entries entries, none taken"
		fi
	done
	refuses "a world size that was not measured" 3 'not measured for world size 4' run "$m" --tokens 1 --json --tp 4 --whitelist "$whitelist"
	[ "$(json "$whitelist" device flavour)" = c ] || refuses "another instruction set" 3 "this is 'c'" run "$m" --tokens 1 --json --isa c --whitelist "$whitelist"
	refuses "another model" 3 'qwen3' run "$golden/qwen3" --tokens 1 --json --whitelist "$whitelist"
	sed 's/"keep": 1\b[.0]*/"keep": 1.5/' "$whitelist" >"$work/changed.json"
	refuses "a file that was changed" 3 'hash: the content has' run "$m" --tokens 1 --json --whitelist "$work/changed.json"
	sed 's/"version": 1,/"version": 2,/' "$whitelist" >"$work/newer.json"
	refuses "a newer file" 3 'version 2, this program reads version 1' run "$m" --tokens 1 --json --whitelist "$work/newer.json"
	head -c 300 "$whitelist" >"$work/short.json"
	refuses "half a file" 3 'not valid JSON' logits "$m" --tokens 1 --whitelist "$work/short.json"
	refuses "results in place of a whitelist" 3 'tandem-whitelist' verify "$m" --tp 2 --whitelist "$screen/prescreen.json"

	if succeeds "report anew" 10 prescreen report "$screen/prescreen.json" --out "$work" --json; then
		equal "report anew" hash "$(json "$out" hash)" "$(json "$whitelist" hash)"
		cmp -s "$work/report.html" "$screen/report.html" && ok "report anew: the same page" || not_ok "report anew: the same page" "it differs"
	fi
	succeeds "a run against itself" 10 prescreen diff "$screen/prescreen.json" "$screen/prescreen.json" --json && {
		equal "a run against itself" flips "$(json "$out" flips)" ""
		equal "a run against itself: stability" equal "$(json "$out" equal)" "$(json "$out" compared)"
	}
fi

succeeds "explain" 20 run "$m" --tokens 1,2,3 -n 3 --ignore-eos --tp 2 --explain-dispatch --json && {
	grep -q '"families":"attn qkv, mlp gate_up' "$out" && ok "explain: families" || not_ok "explain: families" "$(head -c 300 "$out")"
	equal "explain: m" m "$(json "$out" dispatch 0 m)" 3
	grep -q '"why":"default"' "$out" && ok "explain: why" || not_ok "explain: why" "$(head -c 300 "$out")"
}
succeeds "bench step explains" 60 bench step "$m" --context 16 --steps 4 --prefill 16 --batch 2 --explain-dispatch && {
	grep -Eq '^ +2  attn o, mlp down +64 x 64 ' "$out" && ok "bench step explains" || not_ok "bench step explains" "$(tail -3 "$out")"
}
timeout -s TERM 60 "$tandem" serve "$m" --port 0 --max-running 4 --explain-dispatch >"$out" 2>"$err" &
server=$!
for _ in $(seq 600); do grep -q 'serving' "$err" && break; sleep 0.1; done
kill "$server" 2>/dev/null; wait "$server" 2>/dev/null
for rows in 1 2 4 255; do
	grep -Eq "^ +$rows  attn qkv, mlp gate_up " "$err" && ok "serve explains $rows rows" || not_ok "serve explains $rows rows" "$(head -c 400 "$err" | tr '\n' '|')"
done

succeeds "diff of degrees" 10 prescreen diff $account && {
	grep -q '5 of 14 candidates' "$out" && grep -q 'TP2   5120 x 8704            reject    threads: 1088 > 1024' "$out" && ok "diff of degrees" || not_ok "diff of degrees" "$(tail -2 "$out")"
}
succeeds "diff of degrees, JSON" 10 prescreen diff $account --json && equal "diff of degrees, JSON" family "$(json "$out" flips 1 family)" "gdn ba"
sed 's/"speedup":1.536/"speedup":1.001/; s/"kernel":"LLMM1","mode":"4"/&/' $account >"$work/second.json"
succeeds "diff of runs" 10 prescreen diff $account "$work/second.json" --json && equal "diff of runs" equal "$(json "$out" equal)" 28
refuses "diff of two models" 3 'two runs of one model' prescreen diff $account tests/data/prescreen/sample.json
refuses "diff without a file" 2 'is missing' prescreen diff
refuses "diff of three" 2 'too many' prescreen diff a b c
refuses "diff of what is not there" 3 'nofile.json' prescreen diff "$work/nofile.json"
refuses "report into nowhere" 3 'nowhere' prescreen report $account --out "$work/nowhere"
refuses "report of a whitelist" 3 'tandem-prescreen' prescreen report tests/fuzz/corpus/whitelist/account.json
finish
