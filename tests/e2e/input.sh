#!/usr/bin/env bash
# Requests and config.json files that make no sense.
. "$(dirname "$0")/lib/e2e.sh"

m=$golden/llama # vocabulary 160, context 256, 8 query and 4 KV heads
refuses "model folder missing" 3 'nowhere' run "$work/nowhere" --tokens 1 --json
refuses "model folder empty" 3 'config.json' run "$work" --tokens 1 --json
refuses "token id out of range" 3 'token id 160' run "$m" --tokens 1,160 --json
refuses "token id out of range, logits" 3 'token id 160' logits "$m" --tokens 160
refuses "token id out of range, 2^31-1" 3 'token id 2147483647' run "$m" --tokens 2147483647 --json
refuses "token id below 0" 2 'out of range' run "$m" --tokens=-1 --json
refuses "empty prompt" 3 'prompt' run "$m" --tokens= --json
refuses "empty prompt, logits" 3 'token' logits "$m" --tokens ''
refuses "prompt longer than the context" 3 'context' run "$m" --tokens 1,2,3,4,5,6,7,8,9 --context 8 --json
refuses "context longer than the model's" 2 'context' run "$m" --tokens 1 --context 100000 --json
refuses "text without a tokenizer" 3 'tokenizer.json' run "$m" -p hello
refuses "prompt file missing" 3 'tokenizer.json|nofile' run "$m" --prompt-file "$work/nofile"
refuses "--out in a folder that is missing" 3 'nofolder' logits "$m" --tokens 1 --out "$work/nofolder/f"
refuses "an all-reduce larger than the machine" 4 'bench collective: .* GiB are needed' bench collective --tp 2 --rows 65536 --hidden 1048576
refuses "heads not divisible" 3 'tp|TP|world|degree' run "$golden/llama-9-heads" --tokens 1 --tp 2 --json
refuses "more ranks than heads" 3 'tp|TP|world|degree' run "$m" --tokens 1 --tp 16 --json
refuses "heads not divisible, logits" 3 'tp|TP|world|degree' logits "$golden/llama-12-heads" --tokens 1 --tp 8
succeeds "plan of a degree that is not legal" 5 plan "$golden/llama-9-heads" --tp 2 --json &&
	equal "plan of a degree that is not legal" legal "$(json "$out" degrees 0 legal)" false
succeeds "plan of the same degree twice" 5 plan "$m" --tp 2,2 && equal "plan of the same degree twice" columns "$(grep -m1 -o 'TP2' "$out" | wc -l)" 1
succeeds "plan" 5 plan "$m" --json --device-memory 1GiB && {
	equal "plan: degrees" world_size "$(json "$out" degrees 3 world_size)" 8
	equal "plan: a shape" local "$(json "$out" degrees 1 families 0 local | tr -d '[]')" "64,64"
	[ "$(json "$out" degrees 0 kv_tokens)" -gt 0 ] && ok "plan: kv_tokens" || not_ok "plan: kv_tokens" "$(json "$out" degrees 0 kv_tokens)"
}
mkdir "$work/heads"
echo '{"model_type":"llama","hidden_size":384,"intermediate_size":1152,"num_hidden_layers":2,"num_attention_heads":12,"num_key_value_heads":12,
"vocab_size":768,"max_position_embeddings":512,"torch_dtype":"bfloat16"}' >"$work/heads/config.json"
for P in 1 2 3 4 6; do # what ranks allocate: norms are F32 there, and a CPU's own workspace is not planned
	succeeds "plan and ranks, TP$P" 5 plan "$work/heads" --tp $P --json && cp "$out" "$work/plan.json" &&
		succeeds "plan and ranks, TP$P" 20 run "$work/heads" --random-weights 1 --tp $P --tokens 1,2 -n 1 --json || continue
	kv=$(($(json "$work/plan.json" degrees 0 bytes kv_per_token) * ($(json "$out" kv_tokens) + 32))) # the sink's block
	wrong='' most=0
	for r in $(seq 0 $((P - 1))); do
		for tag in sharded kv replicated workspace scratch; do
			seen=$(json "$out" rank_bytes "$r" $tag) planned=$(json "$work/plan.json" degrees 0 bytes $tag)
			case $tag in
			sharded) [ "$seen" -eq "$planned" ] ;;
			kv) [ "$seen" -eq $kv ] ;;
			replicated) [ "$seen" -ge "$planned" ] && [ $((seen * 100)) -le $((planned * 103)) ] ;;
			workspace) [ "$seen" -ge "$planned" ] ;;
			scratch) [ "$seen" -gt $most ] && most=$seen; true ;;
			esac || wrong+=" rank $r: $tag $seen;"
		done
	done
	[ "$most" = "$(json "$work/plan.json" degrees 0 bytes scratch)" ] || wrong+=" largest scratch $most"
	equal "plan and ranks, TP$P" "against $(json "$work/plan.json" degrees 0 bytes), found" "$wrong" ""
done
# more sequences than rows of a chunk: steps, and so what the ranks hold, are for the sequences
succeeds "plan and ranks, many sequences" 5 plan "$work/heads" --tp 2 --prefill-chunk 16 --max-running 40 --json && planned=$(json "$out" degrees 0 bytes scratch) &&
	succeeds "plan and ranks, many sequences" 20 bench step "$work/heads" --random-weights 1 --tp 2 --prefill-chunk 16 --batch 40 --context 16 --steps 1 --repeat 1 --json &&
	equal "plan and ranks, many sequences" scratch "$planned" "$(json "$out" rank_bytes 0 scratch)"
# the cache of sliding layers: shown whichever degree comes first, and all that a rank has is in the bytes
for degrees in 2,3 3,2; do
	succeeds "plan: sliding layers, --tp $degrees" 5 plan tests/data/plan/gemma3-27b --tp $degrees &&
		{ grep -Eq '^KV of sliding layers .*GiB' "$out" && ok "plan: sliding layers, --tp $degrees" || not_ok "plan: sliding layers, --tp $degrees" "no line for them"; }
done
succeeds "plan: sliding layers, JSON" 5 plan tests/data/plan/gemma3-27b --tp 3,2 --device-memory 80GiB --json && {
	left=$((80 << 30))
	for what in weights windows scratch workspace; do left=$((left - ($(json "$out" degrees 1 bytes $what) + 0))); done
	equal "plan: sliding layers, JSON" kv_tokens "$((left / $(json "$out" degrees 1 bytes kv_per_token)))" "$(json "$out" degrees 1 kv_tokens)"
}
hybrid=tests/data/plan/qwen3.5-27b
succeeds "plan --target" 5 plan "$hybrid" --target gfx936 --tp 2,4 --json && {
	at=0
	while [ "$at" -lt 48 ] && [ "$(json "$out" degrees 0 families $at family)" != "mlp down" ]; do at=$((at + 1)); done
	for expected in "0 threads 1088 > 1024" "1 all 576 of 1024 threads"; do
		degree=${expected%% *}
		found="$degree $(json "$out" degrees "$degree" families $at static 0 rule) $(json "$out" degrees "$degree" families $at static 0 detail)"
		equal "plan --target: mlp down" verdict "${found:0:${#expected}}" "$expected"
	done
}
succeeds "plan --target, table" 5 plan "$hybrid" --target tests/data/target/example.json --tp 2,3 &&
	{ grep -q '^gemv_llmm1: illegal: threads: 1088 > 1024 (TP2 mlp down)$' "$out" && ok "plan --target, table" || not_ok "plan --target, table" "no 1088"; }
succeeds "no --target" 5 plan "$hybrid" --tp 2 --json && {
	equal "plan: state of a GDN layer" state "$(json "$out" degrees 0 gdn state | tr -d '[]')" "24,128,128"
	equal "plan: state of a GDN convolution" conv_state "$(json "$out" degrees 0 gdn conv_state | tr -d '[]')" "3,5120"
	grep -q '"kernel"' "$out" && not_ok "no --target" "verdicts" || ok "no --target"
}
succeeds "plan table" 5 plan "$m" --tp 1,2 && { grep -q TP2 "$out" && ok "plan table" || not_ok "plan table" "no TP2"; }

huge=4611686018427387904
for key in hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size max_position_embeddings head_dim; do
	for value in 0 -1 $huge 2.5 '"64"' null '[64]' 1e300; do
		# These have a default when they are null.
		case $key$value in num_key_value_headsnull | head_dimnull | max_position_embeddingsnull) continue ;; esac
		folder=$(copy_model llama)
		set_config "$folder" $key "$value"
		refuses "$key $value" 3 . run "$folder" --tokens 1 --json
		rm -r "$folder"
	done
done
for change in 'rms_norm_eps "x"' 'rms_norm_eps -1' 'rope_theta 0' 'rope_theta "big"' 'model_type "martian"' 'model_type 3' 'hidden_act "martian"' \
	'eos_token_id -7' 'eos_token_id "end"' 'torch_dtype "int3"' 'rope_scaling {"rope_type": "martian", "factor": 2.0}'; do
	folder=$(copy_model llama)
	set_config "$folder" "${change%% *}" "${change#* }"
	refuses "config: $change" 3 . run "$folder" --tokens 1 --json
	rm -r "$folder"
done

folder=$(copy_model llama)
for bad in empty text array nested nul truncated huge; do
	case $bad in
	empty) : ;;
	text) echo "not JSON" ;;
	array) echo "[]" ;;
	nested) head -c 200000 /dev/zero | tr '\0' '[' ;;
	nul) printf '{"model_type": "ll\0ama"}' ;;
	truncated) head -c 200 "$golden/llama/config.json" ;;
	huge) head -c 80000000 /dev/zero | tr '\0' ' ' ;;
	esac >"$folder/config.json"
	refuses "config.json: $bad" 3 'config.json' run "$folder" --tokens 1 --json
	refuses "config.json: $bad, plan" 3 'config.json' plan "$folder"
done
rm -r "$folder"

# A head size that the device has no attention for: plan tells, and nothing is loaded.
folder=$(copy_model llama)
set_config "$folder" head_dim 12
refuses "head_dim 12" 3 'head_dim 12: --device cpu' run "$folder" --tokens 1 --json
succeeds "head_dim 12, plan" 5 plan "$folder" --json && {
	equal "head_dim 12, plan" runs "$(json "$out" runs)" false
	grep -q '"cannot_run": *"llama: head_dim 12: --device cpu' "$out" && ok "head_dim 12, plan: why" || not_ok "head_dim 12, plan: why" "$(head -c 200 "$out")"
}
rm -r "$folder"

# A tokenizer that names more ids than the model has.
filler=
folder=$(copy_model llama)
cat >"$folder/tokenizer.json" <<'JSON'
{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}, "post_processor": null,
 "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {"a": 0, "b": 1, "c": 160}, "merges": []}}
JSON
refuses "vocabulary larger than the model's" 3 'vocab_size' run "$folder" -p ab
sed -i 's/"c": 160/"c": 2/' "$folder/tokenizer.json"
succeeds "smaller vocabulary" 10 run "$folder" -p ab -n 2 && ok "smaller vocabulary"
refuses "empty text" 3 'prompt' run "$folder" -p ''
refuses "prompt file is a folder" 3 'folder' run "$folder" --prompt-file "$work"
# As of Gemma 3 1B: an added token past the vocabulary, which only a prompt with it notices.
sed -i 's/"added_tokens": \[\]/"added_tokens": [{"id": 160, "content": "<image>", "special": true}]/; s/"c": 2/"c": 159/' "$folder/tokenizer.json"
for n in $(seq 2 158); do filler="$filler\"f$n\": $n, "; done
sed -i "s/\"c\": 159/$filler&/" "$folder/tokenizer.json"
succeeds "added token past the vocabulary" 10 run "$folder" -p ab -n 2 &&
	{ grep -q "warning: .*'<image>' has id 160" "$err" && ok "added token past the vocabulary" || not_ok "added token past the vocabulary" "no warning"; }
refuses "text with that token" 3 "'<image>'.* 160" run "$folder" -p 'a<image>b'
refuses "its id" 3 'token id 160' run "$folder" --tokens 1,160 --json
echo '{"model": 3}' >"$folder/tokenizer.json"
refuses "tokenizer.json is broken" 3 'tokenizer.json' run "$folder" --tokens 1 --json
rm -r "$folder"

# A path that is not UTF-8: JSON has U+FFFD in its place.
bad=$work/bad$'\xff'
shown=$work/bad$'\xef\xbf\xbd'
cp -r "$golden/llama" "$bad"
for command in "run BAD --tokens 1 -n 1" "verify BAD" "bench step BAD --steps 1 --prefill 8" "bench step BAD --requests 2 --input 4 --output 2" \
	"bench gemm BAD --repeat 1"; do
	read -ra words <<<"$command"
	succeeds "not UTF-8: $command" 60 "${words[@]/#BAD/$bad}" --json && equal "not UTF-8: $command" model "$(json "$out" model)" "$shown"
done
succeeds "not UTF-8: bench serve" 60 bench serve "$bad" --token-ids --requests 2 --output-len 2 --json &&
	equal "not UTF-8: bench serve" completed "$(json "$out" completed)" 2
succeeds "not UTF-8: prescreen" 60 prescreen "$bad" --tp 1 --rows 1 --families "mlp down" --quick --out "$bad/screen" --json &&
	equal "not UTF-8: prescreen" model "$(json "$out" model)" "${shown##*/}"
succeeds "not UTF-8: prescreen --resume" 60 prescreen "$bad" --tp 1 --rows 1 --families "mlp down" --quick --out "$bad/screen" --resume && ok "not UTF-8: prescreen --resume"
succeeds "not UTF-8: prescreen report" 10 prescreen report "$bad/screen/prescreen.json" --json &&
	equal "not UTF-8: prescreen report" folder "$(json "$out" folder)" "$shown/screen"
succeeds "not UTF-8: prescreen diff" 10 prescreen diff "$bad/screen/prescreen.json" "$bad/screen/prescreen.json" --json &&
	equal "not UTF-8: prescreen diff" second "$(json "$out" second)" "$shown/screen/prescreen.json"
finish
