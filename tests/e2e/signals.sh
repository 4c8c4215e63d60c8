#!/usr/bin/env bash
# Ctrl-C, SIGTERM, and a reader of stdout that goes away.
. "$(dirname "$0")/lib/e2e.sh"

# A model that is slow enough to be interrupted, with a tokenizer in which every id is a letter.
slow=$work/slow
mkdir "$slow"
sed -E 's/("hidden_size": )[0-9]+/\1512/; s/("intermediate_size": )[0-9]+/\12048/; s/("num_hidden_layers": )[0-9]+/\18/; s/("head_dim": )[0-9]+/\164/
	s/("vocab_size": )[0-9]+/\116/; s/("max_position_embeddings": )[0-9]+/\1100000/' "$golden/llama/config.json" >"$slow/config.json"
vocab=$(for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do printf '"\\u%04x": %d,' $((97 + i)) $i; done)
cat >"$slow/tokenizer.json" <<JSON
{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}, "post_processor": null,
 "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {${vocab%,}}, "merges": []}}
JSON
endless="run $slow -p abc --random-weights 1 --context 60000 -n 50000 --ignore-eos"

start_run() { # ARGUMENT...: in the background, until the first text is there
	: >"$out"
	# shellcheck disable=SC2086
	"$tandem" $endless "$@" >"$out" 2>"$err" </dev/null &
	pid=$!
	local i
	for i in $(seq 100); do
		[ -s "$out" ] && return 0
		kill -0 $pid 2>/dev/null || return 1
		sleep 0.1
	done
	return 1
}
end_run() { # waits at most 30 s; sets rc, 999 if it had to be killed
	local i
	for i in $(seq 300); do
		kill -0 $pid 2>/dev/null || { wait $pid; rc=$?; return; }
		sleep 0.1
	done
	kill -9 $pid
	wait $pid 2>/dev/null
	rc=999
}

for p in 1 2 4; do
	if start_run --tp $p; then
		sleep 0.3
		kill -INT $pid
		end_run
		equal "SIGINT at tp $p: exit code" "exit code" "$rc" 130
		grep -q 'generated (cancelled).*TTFT' "$err" && ok "SIGINT at tp $p: summary" || not_ok "SIGINT at tp $p: summary" "$(head -c 300 "$err" | tr '\n' '|')"
		grep -q '^rank 0: ' "$err" && ok "SIGINT at tp $p: bytes of ranks" || not_ok "SIGINT at tp $p: bytes of ranks" missing
	else
		not_ok "SIGINT at tp $p" "it did not start: $(head -1 "$err")"
		kill -9 $pid 2>/dev/null
	fi
done
if start_run; then
	kill -TERM $pid
	end_run
	equal "SIGTERM" "exit code" "$rc" 143
fi

# JSON keeps its form. Nothing is printed before the end, so the signal comes by time.
# shellcheck disable=SC2086
"$tandem" $endless --json >"$out" 2>"$err" &
pid=$!
sleep 3
kill -INT $pid
end_run
equal "SIGINT with --json: exit code" "exit code" "$rc" 130
equal "SIGINT with --json: finish_reason" finish_reason "$(json "$out" finish_reason)" cancelled

# While it loads (or before), the default of the signal holds. `env` undoes that a shell ignores SIGINT for background jobs.
"$tandem" logits "$slow" --random-weights 1 --tokens "$(seq -s, 1 9 | head -c 17)" --timeout 20000 >"$out" 2>"$err" &
pid=$!
sleep 0.05
kill -TERM $pid
end_run
case $rc in
143 | 0) ok "SIGTERM early: ends" ;;
*) not_ok "SIGTERM early: ends" "exit $rc" ;;
esac

# A long prompt: the signal comes inside a prefill.
long=$(seq -s, 1 4000 | tr -d '\n' | sed -E 's/[0-9]+/3/g')
"$tandem" run "$slow" --tokens "$long" --random-weights 1 --context 60000 --json --prefill-chunk 4096 >"$out" 2>"$err" &
pid=$!
sleep 2
start=$(now_ms)
kill -INT $pid
end_run
if [ "$rc" -eq 0 ]; then skip "SIGINT in a prefill" "it was already done"
else
	equal "SIGINT in a prefill: exit code" "exit code" "$rc" 130
	took=$(($(now_ms) - start))
	soon=3000
	[ "$limit_kib" = unlimited ] && soon=25000 # a sanitizer's single op can take seconds
	[ $took -lt $soon ] && ok "SIGINT in a prefill: soon" || not_ok "SIGINT in a prefill: soon" "$took ms"
fi

# shellcheck disable=SC2086
{ timeout 20 "$tandem" $endless 2>"$err"; echo $? >"$work/code"; } | head -c 3 >"$out"
equal "reader goes away: exit code" "exit code" "$(cat "$work/code")" 141
equal "reader goes away: stderr" stderr "$(cat "$err")" ""
run 10 run "$slow" -p abc --random-weights 1 -n 4 --ignore-eos
equal "text" "stdout has" "$(tr -d 'a-p' <"$out" | wc -c) other bytes of $(wc -c <"$out")" "0 other bytes of 4"
if [ -w /dev/full ]; then
	timeout 20 "$tandem" run "$slow" -p abc --random-weights 1 -n 4 --ignore-eos >/dev/full 2>"$err"
	equal "full disk: exit code" "exit code" "$?" 3
	one_line && ok "full disk: one line" || not_ok "full disk: one line" "$(head -c 300 "$err")"
	timeout 20 "$tandem" --help >/dev/full 2>"$err"
	equal "full disk, help: exit code" "exit code" "$?" 3
else
	skip "full disk" "no /dev/full"
fi
finish
