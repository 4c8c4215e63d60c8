#!/usr/bin/env bash
# Greedy continuations against recorded ones.
. "$(dirname "$0")/lib/e2e.sh"

greedy() { # NAME FOLDER TOKENS COUNT EXPECTED ARGUMENT...
	local name=$1 folder=$2 tokens=$3 count=$4 expected=$5
	shift 5
	succeeds "$name" 120 run "$folder" --tokens "$tokens" -n "$count" --json "$@" || return
	equal "$name" tokens "$(json "$out" tokens)" "$expected"
}
count_of() { echo "$1" | awk -F, '{print NF}'; }

for folder in "$golden"/*/; do
	name=$(basename "$folder")
	expect=$folder/expect.json
	i=0
	while tokens=$(json "$expect" cases $i tokens); do
		expected=$(json "$expect" cases $i greedy 2>/dev/null)
		[ -n "$expected" ] || { i=$((i + 1)); continue; }
		for p in $(json "$expect" legal_tp | tr , ' '); do
			greedy "greedy $name case $i tp $p" "$folder" "$tokens" "$(count_of "$expected")" "$expected" --ignore-eos --tp "$p"
		done
		i=$((i + 1))
	done
done

expected=$(json "$golden/qwen3/expect.json" cases 0 stop greedy)
tokens=$(json "$golden/qwen3/expect.json" cases 0 tokens)
greedy "eos of generation_config.json" "$golden/qwen3" "$tokens" 64 "$expected" --temp 0
equal "eos: finish_reason" finish_reason "$(json "$out" finish_reason)" stop
succeeds "length" 20 run "$golden/llama" --tokens 1 -n 3 --json --ignore-eos && {
	equal "length: finish_reason" finish_reason "$(json "$out" finish_reason)" length
	equal "json: prompt_tokens" prompt_tokens "$(json "$out" prompt_tokens)" 1
	equal "json: count" count "$(json "$out" count)" 3
	equal "json: world_size" world_size "$(json "$out" world_size)" 1
	equal "json: text without a tokenizer" text "$(json "$out" text)" null
	for key in ttft_ms tpot_ms collectives_per_step; do
		json "$out" $key >"$work/value" && ok "json: $key" || not_ok "json: $key" missing
	done
}
succeeds "collectives" 20 run "$golden/llama" --tokens 1 -n 2 --json --tp 2 &&
	equal "collectives: two a layer" collectives_per_step "$(json "$out" collectives_per_step)" 4

# Sampling: the seed decides, and nothing else.
sampled() { run 20 run "$golden/llama" --tokens 1,2,3 -n 24 --json --ignore-eos "$@"; json "$out" tokens; }
drawn() { sampled --temp 1.2 --top-k 50 --top-p 0.95 "$@"; }
a=$(drawn --seed 5) b=$(drawn --seed 5 --tp 4 --threads 3) c=$(drawn --seed 6)
equal "same seed, other world size" tokens "$b" "$a"
[ "$a" != "$c" ] && ok "other seed" || not_ok "other seed" "the same tokens"
a=$(sampled --temp 0) b=$(sampled --temp 1.2 --seed 5 --top-p 0)
equal "--top-p 0 leaves the likeliest token" tokens "$b" "$a"

succeeds "verify" 60 verify "$golden/llama" --tp 4 --json && {
	equal "verify: bits" bit_identical "$(json "$out" bit_identical)" true
	equal "verify: tokens" tokens_agree "$(json "$out" tokens_agree)" true
}
succeeds "verify with prompts" 60 verify "$golden/llama" --tp 2 --prompts <(printf '1,2,3\n\n7\n') && ok "verify with prompts"

# The embedded model: 200 greedy tokens of transformers, from text and from ids, and its chat template.
i=0
while tokens=$(json "$golden/demo.json" prompts $i prompt_tokens); do
	expected=$(json "$golden/demo.json" prompts $i greedy)
	for p in 1 2 4 8; do
		greedy "greedy demo prompt $i tp $p" "$model" "$tokens" "$(count_of "$expected")" "$expected" --ignore-eos --tp $p
	done
	text=$(json "$golden/demo.json" prompts $i text; echo .) # the dot keeps a last newline
	printf '%s' "${text%??}" >"$work/prompt"
	succeeds "text of demo prompt $i" 60 run "$model" --prompt-file "$work/prompt" -n 8 --json &&
		equal "text of demo prompt $i" prompt_tokens "$(json "$out" prompt_tokens)" "$tokens"
	i=$((i + 1))
done
equal "demo prompts" count "$i" 6
succeeds "chat" 20 run "$model" --chat -p "What does a cow eat?" --tp 2 --json && {
	equal "chat: text" text "$(json "$out" text)" "A cow eats grass."
	equal "chat: finish_reason" finish_reason "$(json "$out" finish_reason)" stop
}
succeeds "chat: what a user writes is text" 20 run "$model" --chat -p "<|im_end|>" -n 1 --json &&
	{ [[ ",$(json "$out" prompt_tokens)," == *,2,*,2,* ]] && not_ok "chat: what a user writes is text" "a second control token" || ok "chat: one control token"; }
refuses "chat: no template" 3 "template|tokenizer" run "$golden/llama" --chat -p x
refuses "chat: of ids" 2 "chat" run "$model" --chat --tokens 1,2
finish
