#!/usr/bin/env bash
# The prescreen from outside: what it writes, what it refuses, an interrupt and what goes on after it, a budget; and the story of docs/PRESCREEN.md, command by command.
. "$(dirname "$0")/lib/e2e.sh"

m=$golden/llama
qwen=tests/data/plan/qwen3.5-27b
screen=$work/screen

# Whatever the times: every problem is done, what is compared is right, and nothing that is wrong is timed.
if succeeds "prescreen" 100 prescreen "$m" --tp 1,2,4 --rows 1,3,64 --contexts 40 --quick --budget 500 --out "$screen" --json; then
	equal "prescreen" complete "$(json "$screen/prescreen.json" complete)" true
	equal "prescreen: stdout is the file" text "$(tr -d ' \n' <"$out" | sha256sum)" "$(tr -d ' \n' <"$screen/prescreen.json" | sha256sum)"
	equal "prescreen: stdout is one line" lines "$(wc -l <"$out")" 1
	equal "prescreen: chains" count "$(grep -c '"layers"' "$screen/prescreen.json")" 6 # of three degrees and two numbers of rows of decode
	grep -q '^## In the chain' "$screen/report.md" && grep -q 'id=chains' "$screen/report.html" && ok "prescreen: chains in the reports" || not_ok "prescreen: chains in the reports" "none"
	wrong=$(grep -cE '"reason": "(wrong|unwritten|outside|unrepeatable|refused|not taken)"' "$screen/prescreen.json")
	# The kernels of the processor are right; a refusal could only be a library's.
	equal "prescreen: nothing is wrong" count "$wrong" 0
	equal "prescreen: baseline" outcome "$(json "$screen/prescreen.json" problems 0 candidates 0 outcome)" baseline
	equal "prescreen: no note" notes "$(grep -c 'the baseline fails' "$screen/prescreen.json")" 0
	[ "$(json "$screen/prescreen.json" problems 0 candidates 0 check referenced)" -gt 0 ] && ok "prescreen: reference" || not_ok "prescreen: reference" "nothing was compared with it"
	grep -q '"onednn"' "$screen/prescreen.json" && ok "prescreen: oneDNN is a candidate" || skip "prescreen: oneDNN" "this system has none"
fi
succeeds "prescreen: a table" 60 prescreen "$m" --tp 1,1 --rows 1,1 --families "mlp down" --quick --out "$work/table" && {
	equal "prescreen: asked for twice, measured once" places "$(grep -c '"family"' "$work/table/prescreen.json")" 1
	grep -q 'TP1 mlp down' "$out" && ok "prescreen: a table" || not_ok "prescreen: a table" "$(head -c 300 "$out")"
	[ "$(grep -c '"kernel": "default"' "$work/table/prescreen.json")" -ge 1 ] && ok "prescreen: --families" || not_ok "prescreen: --families" "none"
}

succeeds "prescreen report: another order" 10 prescreen report "$work/table/prescreen.json" --any-order --out "$work/table" &&
	grep -q '^chains were measured without --any-order' "$out" &&
	ok "prescreen report: another order" || not_ok "prescreen report: another order" "$(cat "$out")"

# Experts and the delta net of a hybrid model: one way on a CPU, checked and timed all the same.
if succeeds "prescreen: experts and delta net" 60 prescreen "$golden/qwen3_5-moe" --tp 1,2 --rows 2,40 --families "moe experts,gdn state" --quick --out "$work/blocks" --json; then
	flat=$(tr -d '\n ' <"$work/blocks/prescreen.json")
	equal "prescreen: experts" problems "$(grep -o '"op":"moe"' <<<"$flat" | wc -l) $(grep -o '"op":"gdn"' <<<"$flat" | wc -l)" "4 4"
	equal "prescreen: one way" notes "$(grep -c 'this back end has one way only' "$work/blocks/prescreen.json")" 8
	equal "prescreen: both are right" reasons "$(grep -c '"reason": ""' "$work/blocks/prescreen.json")" 8
fi

# An interrupt keeps what is done, and --resume does the rest.
resumed=$work/resumed
("$tandem" prescreen "$m/." --tp 1,2,4,8 --rows 1,2,4,8,16,64 --contexts 40 --out "$resumed" >"$work/first.out" 2>"$work/first.err" & echo $! >"$work/pid"; wait $!; echo $? >"$work/rc")&
for _ in $(seq 600); do # until its first problem is done
	[ -s "$resumed/prescreen.json" ] && break
	sleep 0.1
done
refuses "two runs in one folder" 4 'another prescreen is at work there' prescreen "$m" --rows 1 --out "$resumed"
kill -INT "$(cat "$work/pid")" 2>/dev/null
wait
equal "interrupt" code "$(cat "$work/rc")" 130
grep -q -- '--resume' "$work/first.err" && ok "interrupt says how to go on" || not_ok "interrupt says how to go on" "$(cat "$work/first.err")"
equal "interrupt: not complete" complete "$(json "$resumed/prescreen.json" complete)" false
first=$(json "$resumed/prescreen.json" problems 0 candidates 0 check hash)
if succeeds "resume" 60 prescreen "$m" --tp 1,2,4,8 --rows 1,2,4,8,16,64 --contexts 40 --out "$resumed" --resume --budget 1 --json; then
	equal "resume keeps what was done" hash "$(json "$resumed/prescreen.json" problems 0 candidates 0 check hash)" "$first"
fi
equal "resume: the model by its folder" model "$(json "$resumed/prescreen.json" model)" llama
refuses "resume with fewer degrees" 3 'results that are not asked for now and would be lost, the first TP' prescreen "$m" --tp 8 --rows 1 --contexts 40 --threads 1 --out "$resumed" --resume
equal "resume with fewer degrees: all is there" hash "$(json "$resumed/prescreen.json" problems 0 candidates 0 check hash)" "$first"
refuses "resume of another model" 3 'the model is llama, now it is qwen3' prescreen "$golden/qwen3" --rows 1 --out "$resumed" --resume
refuses "resume of another model, a path of dots" 3 'the model is llama, now it is qwen3' prescreen "$golden/qwen3/." --rows 1 --out "$resumed" --resume
refuses "resume of another model, its config" 3 'the model is llama, now it is qwen3' prescreen "$golden/qwen3/config.json" --rows 1 --out "$resumed" --resume
refuses "resume with --any-order" 3 '--any-order is off, now it is on' prescreen "$m" --tp 1,2,4,8 --any-order --out "$resumed" --resume
refuses "resume with other thresholds" 3 'keep and --reject' prescreen "$m" --keep 2 --out "$resumed" --resume
sed -i 's/"program": "[^"]*"/"program": "0.0.0"/' "$resumed/prescreen.json"
refuses "resume of another version's results" 3 'the version of tandem is 0.0.0' prescreen "$m" --out "$resumed" --resume
sed -i 's/"version": 1/"version": 9/' "$resumed/prescreen.json"
refuses "resume of a newer file" 3 'version 9 of the format' prescreen "$m" --out "$resumed" --resume
refuses "resume of nothing" 3 'leave --resume out' prescreen "$m" --out "$work/nothing" --resume

if succeeds "budget" 30 prescreen "$m" --tp 1 --rows 1 --quick --budget 0.000001 --out "$work/budget" --json; then
	equal "budget" complete "$(json "$out" complete)" false
	one_line && grep -q 'nothing was written' "$err" && [ -z "$(ls "$work/budget")" ] && ok "budget: nothing is done" ||
		not_ok "budget: nothing is done" "$(cat "$err") $(ls "$work/budget")"
fi
cp -r "$work/table" "$work/before"
succeeds "budget over an earlier run" 30 prescreen "$m" --tp 1 --rows 1 --quick --budget 0.000001 --out "$work/table" &&
	diff -r "$work/before" "$work/table" >/dev/null &&
	ok "budget over an earlier run" || not_ok "budget over an earlier run" "its files have changed"
# What could not be saved is not said to be there.
mkdir -p "$work/unsaved/prescreen.json"
refuses "results that cannot be saved" 3 'prescreen.json: cannot be written' prescreen "$m" --tp 1 --rows 1 --families "mlp down" --quick --out "$work/unsaved"

refuses "thresholds the wrong way round" 2 'reject' prescreen "$m" --keep 1.05 --reject 1.5 --out "$work/x"
refuses "no such family" 2 'families' prescreen "$m" --families embedding --out "$work/x"
refuses "a degree that cannot be" 3 'tp 3' prescreen "$m" --tp 3 --out "$work/x"
refuses "a folder that cannot be" 3 'out' prescreen "$m" --rows 1 --out /proc/nothing
refuses "a folder that is a file" 3 'out .*: Not a directory' prescreen "$m" --rows 1 --out "$work/rc"
refuses "a device that is none" 2 'device' prescreen "$m" --device abacus --out "$work/x"
refuses "no model" 3 'check the path' prescreen "$work/none" --out "$work/x"

# The account's story. TP changes the shape that a rank sees, so a kernel's verdict flips between degrees: first by rules, with no device at all,
succeeds "story: shapes" 10 plan "$qwen" --tp 1,2,4 && grep -Eq 'mlp down +row +64 +5120 x 17408 +5120 x 17408 +5120 x 8704 +5120 x 4352' "$out" &&
	ok "story: shapes" || not_ok "story: shapes" "not those of the account"
succeeds "story: rules" 10 plan "$qwen" --tp 2,4 --target gfx936 && {
	grep -q 'LLMM1: illegal: threads: 1088 > 1024 (TP2 mlp down)' "$out" && ok "story: 1088 threads" || not_ok "story: 1088 threads" "not named"
	grep -q 'TP4 mlp down' "$out" && not_ok "story: legal at TP4" "named" || ok "story: legal at TP4"
}
succeeds "story: rules for more rows" 10 plan "$qwen" --tp 2 --target gfx936 --rows 1,2 && grep -q 'LLMM1: illegal: rows: M 2 > 1 (everywhere)' "$out" &&
	ok "story: rows" || not_ok "story: rows" "not named"
succeeds "story: heads" 10 plan "$qwen" --tp 1,2 --target a100 --rows 1,1024 && grep -q 'prefill_wide: illegal: arch: warpgroup products: sm 80 is not 90' "$out" &&
	grep -Eq 'prefill_tensor +legal +legal' "$out" && ok "story: rules of attention" || not_ok "story: rules of attention" "not named"
# then by measuring: the same families, each with its own shape at each degree, and what flips.
if [ -s "$screen/prescreen.json" ]; then
	equal "story: K is cut" k "$(tr -d '\n ' <"$screen/prescreen.json" | grep -o '"k":[0-9]*,"m":1},"places":\[{"tp":[124],"family":"attno"' | sed 's/"k":\([0-9]*\),.*"tp":\([124]\).*/\2:\1/' | sort | tr '\n' ' ')" "1:64 2:32 4:16 "
	succeeds "story: what flips" 10 prescreen diff "$screen/prescreen.json" && grep -q 'candidates that were decided at two degrees or more' "$out" &&
		ok "story: what flips" || not_ok "story: what flips" "$(head -c 300 "$out")"
fi
finish
