#!/usr/bin/env bash
# The engine on a GPU back end, from outside: logits against the CPU's within a bound, the same bits whatever the graphs, chunks, blocks and
# batch, world sizes, sampling, and every fault point. On the emulated device by default: few tokens, because it is slow.
#
# tests/gpu/engine.sh [-b BUILD]; DEVICE=emu|cuda|hip, DEGREES="1 2 4".
export E2E_BUILD=${E2E_BUILD:-build/emu32}
. "$(dirname "$0")/../e2e/lib/e2e.sh"
device=${DEVICE:-emu}
degrees=${DEGREES:-1 2 4}
limit=120 # seconds for one run
limit_kib=unlimited # a GPU's runtime maps far more than it uses
logits_error=$build/tests/e2e/logits_error

# Largest error of a row over its largest logit. F32: sums in other orders. BF16: every activation is rounded to 8 bits, in models with a
# width of 64 where little averages out; the CPU keeps them in F32.
bound_f32=2e-5
bound_bf16=0.04
# The delta rule multiplies what the rounding of its inputs leaves from token to token: Hugging Face's own bf16 pass differs from its f32 pass by 0.17 of a
# row's largest logit on qwen3_5 (0.08 in relative L2), ours by 0.14 (0.07).
bound_bf16_state=0.2

# close NAME FOLDER TOKENS VOCAB BOUND ARGUMENT...: logits on the device against the CPU's.
close() {
	local name=$1 folder=$2 tokens=$3 vocab=$4 bound=$5 found
	shift 5
	run $limit logits "$folder" --tokens "$tokens" --out "$work/cpu" --random-weights 5
	[ "$rc" -eq 0 ] || { not_ok "$name" "cpu: exit $rc: $(head -1 "$err")"; return; }
	run $limit logits "$folder" --tokens "$tokens" --out "$work/device" --random-weights 5 --device "$device" "$@"
	[ "$rc" -eq 0 ] || { not_ok "$name" "exit $rc: $(head -c 300 "$err" | tr '\n' '|')"; return; }
	found=$("$logits_error" "$work/device" "$work/cpu" "$vocab" 2>&1) || { not_ok "$name" "$found"; return; }
	if awk -v e="${found% *}" -v b="$bound" 'BEGIN {exit !(e <= b)}'; then ok "$name: error ${found% *}"; else not_ok "$name" "error ${found% *}, more than $bound"; fi
}

# like_golden NAME MODEL BOUND ARGUMENT...: a golden model's own weights and prompt on the device against the logits of HF transformers in f32.
like_golden() {
	local name=$1 folder=$golden/$2 bound=$3 found
	shift 3
	run $limit logits "$folder" --tokens "$(json "$folder/expect.json" cases 0 tokens)" --out "$work/device" --device "$device" "$@"
	[ "$rc" -eq 0 ] || { not_ok "$name" "exit $rc: $(head -c 300 "$err" | tr '\n' '|')"; return; }
	found=$("$logits_error" "$work/device" "$folder/logits.bin" "$(json "$folder/expect.json" cases 0 shape 1)" 2>&1) || { not_ok "$name" "$found"; return; }
	if awk -v e="${found% *}" -v b="$bound" 'BEGIN {exit !(e <= b)}'; then ok "$name: error ${found% *}"; else not_ok "$name" "error ${found% *}, more than $bound"; fi
}

f32=$(copy_model llama-head-dim) && set_config "$f32" dtype '"float32"' && set_config "$f32" torch_dtype '"float32"'
grep -q '"float32"' "$f32/config.json" || not_ok "f32 model" "the config has no dtype to set"
legal=$(json "$golden/llama-head-dim/expect.json" legal_tp | tr , ' ')
prompt=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21
vocab=$(json "$f32/config.json" vocab_size)

for p in $degrees; do
	case " $legal " in *" $p "*) ;; *) continue ;; esac
	close "f32 tp $p" "$f32" $prompt "$vocab" $bound_f32 --tp "$p"
	close "f32 tp $p in chunks" "$f32" $prompt "$vocab" $bound_f32 --tp "$p" --prefill-chunk 4 --kv-block 16
	close "bf16 tp $p" "$golden/llama-head-dim" $prompt "$vocab" $bound_bf16 --tp "$p"
done
for name in qwen3 mistral-full; do
	close "bf16 $name" "$golden/$name" $prompt "$(json "$golden/$name/config.json" vocab_size)" $bound_bf16
done

# Experts: few rows, tiles of rows, decode steps from graphs.
moe=$(copy_model qwen3-moe-norm) && set_config "$moe" dtype '"float32"' && set_config "$moe" torch_dtype '"float32"'
moe_vocab=$(json "$moe/config.json" vocab_size) moe_want=
for p in $degrees; do
	close "f32 experts tp $p" "$moe" $prompt "$moe_vocab" $bound_f32 --tp "$p"
	close "f32 experts tp $p in chunks of 3" "$moe" $prompt "$moe_vocab" $bound_f32 --tp "$p" --prefill-chunk 3
	found=$(limit_kib=unlimited sum_logits "$moe" --tokens $prompt --device "$device" --tp "$p" --tp-invariant --random-weights 5)
	if [ -z "$moe_want" ]; then moe_want=$found; fi
	equal "tp-invariant experts: tp $p" hash "$found" "$moe_want"
done

# Gated delta net: prompts at once, in chunks, row by row; decode steps from graphs are behind the tokens of `run`.
for name in qwen3_5 qwen3_next-dense; do
	hybrid=$(copy_model $name) && set_config "$hybrid" dtype '"float32"' && set_config "$hybrid" torch_dtype '"float32"'
	hybrid_vocab=$(json "$hybrid/config.json" vocab_size)
	for p in $degrees; do
		close "f32 $name tp $p" "$hybrid" $prompt "$hybrid_vocab" $bound_f32 --tp "$p"
		close "f32 $name tp $p in chunks of 5" "$hybrid" $prompt "$hybrid_vocab" $bound_f32 --tp "$p" --prefill-chunk 5
	done
	close "f32 $name row by row" "$hybrid" $prompt "$hybrid_vocab" $bound_f32 --prefill-chunk 1
	close "16 bit $name" "$golden/$name" $prompt "$hybrid_vocab" $bound_bf16_state
done

# Both in one layer.
for name in qwen3_next-moe qwen3_5-moe; do
	mixed=$(copy_model $name) && set_config "$mixed" dtype '"float32"' && set_config "$mixed" torch_dtype '"float32"'
	for p in $degrees; do close "f32 $name tp $p" "$mixed" 1,2,3,4,5,6 "$(json "$mixed/expect.json" cases 0 shape 1)" $bound_f32 --tp "$p"; done
done

# Gemma: four norms, soft caps, two ropes; blocks of 16 tokens, so that the windows of sliding layers leave some behind. F16 has three bits more.
for name in gemma3 gemma3-composite gemma2; do
	gemma=$(copy_model $name) && set_config "$gemma" dtype '"float32"' && set_config "$gemma" torch_dtype '"float32"'
	gemma_prompt=$(json "$gemma/expect.json" cases 0 tokens) gemma_vocab=$(json "$gemma/expect.json" cases 0 shape 1) gemma_want=
	bound=$bound_bf16
	[ $name = gemma2 ] && bound=0.01
	for p in $degrees; do
		like_golden "16 bit $name tp $p" $name $bound --tp "$p" --kv-block 16
		like_golden "16 bit $name tp $p in chunks of 7, embedding split" $name $bound --tp "$p" --kv-block 16 --prefill-chunk 7 --embedding vocab
		[ $name != gemma3-composite ] || continue
		close "f32 $name tp $p" "$gemma" "$gemma_prompt" "$gemma_vocab" $bound_f32 --tp "$p"
		close "f32 $name tp $p in chunks of 7" "$gemma" "$gemma_prompt" "$gemma_vocab" $bound_f32 --tp "$p" --prefill-chunk 7 --kv-block 16
		found=$(limit_kib=unlimited sum_logits "$gemma" --tokens "$gemma_prompt" --device "$device" --tp "$p" --tp-invariant --random-weights 5 --kv-block 16)
		if [ -z "$gemma_want" ]; then gemma_want=$found; fi
		equal "tp-invariant $name: tp $p" hash "$found" "$gemma_want"
	done
	[ $name != gemma3-composite ] || continue
	close "f32 $name row by row" "$gemma" "$gemma_prompt" "$gemma_vocab" $bound_f32 --prefill-chunk 1 --kv-block 16
	# Decode steps, from graphs and not, through blocks that the windows leave.
	gemma_tokens() { run $limit run "$gemma" --random-weights 5 --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14 -n 16 --json --ignore-eos --kv-block 16 "$@"; if [ "$rc" -eq 0 ]; then json "$out" tokens; else echo "exit $rc: $(head -1 "$err")"; fi; }
	gemma_cpu=$(gemma_tokens)
	for p in $degrees; do
		equal "$name, tp $p" tokens "$(gemma_tokens --device "$device" --tp "$p")" "$gemma_cpu"
	done
	equal "$name, tp $p, no graphs" tokens "$(gemma_tokens --device "$device" --tp "$p" --no-graphs)" "$gemma_cpu"
	equal "$name, tp 1, sampled" tokens "$(gemma_tokens --device "$device" --temp 1.1 --top-p 0.95 --seed 9)" "$(gemma_tokens --temp 1.1 --top-p 0.95 --seed 9)"
done

# --tp-invariant: one hash whatever the world size.
want=
for p in $degrees; do
	case " $legal " in *" $p "*) ;; *) continue ;; esac
	found=$(limit_kib=unlimited sum_logits "$golden/llama-head-dim" --tokens $prompt --device "$device" --tp "$p" --tp-invariant)
	if [ -z "$want" ]; then want=$found; fi
	equal "tp-invariant: tp $p" hash "$found" "$want"
	found=$(limit_kib=unlimited sum_logits "$golden/llama-head-dim" --tokens $prompt --device "$device" --tp "$p" --tp-invariant --embedding vocab)
	equal "tp-invariant: tp $p, embedding split" hash "$found" "$want"
done

# tokens NAME ARGUMENT...: what a run generates.
tokens() { run $limit run "$f32" --random-weights 5 --tokens 1,2,3 -n 6 --json --ignore-eos "$@"; if [ "$rc" -eq 0 ]; then json "$out" tokens; else echo "exit $rc: $(head -1 "$err")"; fi; }
sampled="--temp 1.1 --top-k 40 --top-p 0.95 --min-p 0.01 --repeat-penalty 1.2 --seed 9"
greedy_cpu=$(tokens) sampled_cpu=$(tokens $sampled)
for p in $degrees; do
	case " $legal " in *" $p "*) ;; *) continue ;; esac
	equal "greedy, tp $p" tokens "$(tokens --device "$device" --tp "$p")" "$greedy_cpu"
	equal "greedy, tp $p, no graphs" tokens "$(tokens --device "$device" --tp "$p" --no-graphs)" "$greedy_cpu"
	equal "sampled, tp $p" tokens "$(tokens --device "$device" --tp "$p" $sampled)" "$sampled_cpu"
	if [ "$p" -eq 2 ]; then
		equal "greedy, lm head on rank 0" tokens "$(tokens --device "$device" --tp 2 --lm-head rank0)" "$greedy_cpu"
		equal "sampled, lm head on rank 0" tokens "$(tokens --device "$device" --tp 2 --lm-head rank0 $sampled)" "$sampled_cpu"
		equal "greedy, two ranks on one device" tokens "$(tokens --device "$device" --tp 2 --devices 0,0)" "$greedy_cpu"
		equal "greedy, two ranks on one device, no graphs" tokens "$(tokens --device "$device" --tp 2 --devices 0,0 --no-graphs)" "$greedy_cpu"
	fi
	want=$((p > 1 ? 2 * $(json "$f32/config.json" num_hidden_layers) : 0))
	equal "collectives, tp $p" collectives_per_step "$(json "$out" collectives_per_step)" $want
	[ "$p" -gt 1 ] || continue
	equal "greedy, tp $p, lm head on rank 0, embedding split" tokens "$(tokens --device "$device" --tp "$p" --embedding vocab --lm-head rank0)" "$greedy_cpu"
	equal "greedy, tp $p, embedding split" tokens "$(tokens --device "$device" --tp "$p" --embedding vocab)" "$greedy_cpu"
	equal "collectives, tp $p, embedding split" collectives_per_step "$(json "$out" collectives_per_step)" $((want + 1))
done

# A larger vocabulary than the device samples from.
big=$(copy_model llama-head-dim) && set_config "$big" torch_dtype '"float32"' && set_config "$big" vocab_size 524289 && set_config "$big" hidden_size 16
big_tokens() { run $limit run "$big" --random-weights 5 --tokens 1 -n 1 --json --ignore-eos --context 32 --temp 0.1 --seed 9 "$@"; if [ "$rc" -eq 0 ]; then json "$out" tokens; else echo "exit $rc: $(head -1 "$err")"; fi; }
equal "sampled of 524289 tokens" tokens "$(big_tokens --device "$device")" "$(big_tokens)"

# Batches. Four rows are a bucket: recorded and not, the same bits; five are padded to eight, which may choose other kernels: the same tokens.
# Whatever blocks the ranks' pools hand out, the same bits.
batch() { timeout $limit "$build/tests/e2e/engine_batch" "$f32" "$@" 2>&1; }
names() { cut -d' ' -f1 <<<"$1" | tr '\n' ' '; }
for p in $degrees; do
	case " $legal " in *" $p "*) ;; *) continue ;; esac
	four=$(batch "$device" "$p" 4 graphs) five=$(batch "$device" "$p" 5 graphs)
	equal "batch, tp $p" tokens "$(names "$five")" "$(names "$(batch cpu "$p" 5)")"
	equal "batch, tp $p: no graphs" bits "$(batch "$device" "$p" 4 no-graphs)" "$four"
	equal "batch, tp $p: other blocks" bits "$(batch "$device" "$p" 4 graphs 77)" "$four"
	equal "batch, tp $p: other blocks, no graphs" bits "$(batch "$device" "$p" 5 no-graphs 78)" "$(batch "$device" "$p" 5 no-graphs)"
	equal "batch, tp $p: best on the devices" tokens "$(names "$(batch "$device" "$p" 5 graphs 0 argmax)")" "$(names "$five")"
done

# After a failure: the same on the rebuilt group, whose steps were recorded anew.
case " $degrees " in *" 2 "*)
	four=$(batch "$device" 2 4 graphs)
	for fault in at=kernel,seq=2,kind=error at=reserve,seq=3,kind=exit; do
		equal "rebuilt after $fault" bits "$(batch "$device" 2 4 graphs 0 scored "rank=1,$fault" | grep -v '^engine_batch: ')" "$four"
	done ;;
esac

# A whitelist: what it names is taken, the results stay within the bound, the same tokens come out, and --tp-invariant keeps its bits: it leaves out
# what adds in another order.
bf16=$golden/llama-head-dim
for kernel in tile gemv_strided; do
	table=$work/$kernel.json
	# shellcheck disable=SC2086
	"$build/tests/e2e/take_kernel" "$bf16" "$device" $kernel 16 $degrees >"$table" 2>"$err" || { not_ok "whitelist of $kernel" "$(cat "$err")"; continue; }
	for p in $degrees; do
		case " $legal " in *" $p "*) ;; *) continue ;; esac
		close "whitelist of $kernel, tp $p" "$bf16" $prompt "$vocab" $bound_bf16 --tp "$p" --whitelist "$table"
		run $limit run "$bf16" --random-weights 5 --tokens 1,2,3 -n 4 --json --ignore-eos --device "$device" --tp "$p" --whitelist "$table" --explain-dispatch
		[ "$rc" -eq 0 ] || { not_ok "whitelist of $kernel, tp $p: taken" "exit $rc: $(head -1 "$err")"; continue; }
		one=$(grep -o '{"families":[^}]*"m":1,[^}]*}' "$out")
		if [ "$(grep -c "\"kernel\":\"$kernel\".*\"why\":\"whitelist, 1.50x" <<<"$one")" -ge 4 ] && ! grep -q '"why":"default' <<<"$one"; then ok "whitelist of $kernel, tp $p: taken"
		else not_ok "whitelist of $kernel, tp $p: taken" "$one"; fi
		found=$(limit_kib=unlimited sum_logits "$bf16" --tokens $prompt --device "$device" --tp "$p" --tp-invariant --whitelist "$table")
		equal "whitelist of $kernel, tp $p: invariant" hash "$found" "$(limit_kib=unlimited sum_logits "$bf16" --tokens $prompt --device "$device" --tp "$p" --tp-invariant)"
	done
done
refuses "whitelist of another device" 3 "measured with device '$device'" run "$bf16" --tp "${degrees##* }" --tokens 1 --json --whitelist "$work/tile.json"

# The linears alone, in the types that a step has.
for folder in "$f32" "$golden/llama-head-dim"; do
	name="bench gemm $(json "$folder/config.json" dtype || json "$folder/config.json" torch_dtype)"
	succeeds "$name" 120 bench gemm "$folder" --device "$device" --tp 1,2 --rows 1,16 --repeat 1 --json &&
		equal "$name" linears "$(grep -o '"family"' "$out" | wc -l)" "$(grep -o '"us":[0-9]' "$out" | wc -l)"
done

# Quantised weights are refused by name.
if [ -n "${GGUF:-}" ]; then refuses "quantised weights" 3 "not quantised" run "$GGUF" --device "$device" --tokens 1; fi

# Every fault point on every rank of two: an answer within the deadline, with the right code.
expected_code() { # POINT RANK KIND
	case $1:$3 in
	shutdown:*) echo 0 ;;
	sample:*) [ "$2" -eq 0 ] || { echo 0; return; } ;;
	esac
	case $1:$3 in
	shutdown:*) ;;
	*:oom) echo 4 ;;
	*) echo 5 ;;
	esac
}
timeout_ms=${FAULT_TIMEOUT_MS:-6000}
case " $degrees " in *" 2 "*) points="open load reserve barrier ready kernel sample shutdown" ;; *) points= ;; esac
for point in $points; do
	for rank in 0 1; do
		for kind in error oom exit; do
			seq=1
			case $point in open | shutdown) seq=0 ;; esac
			name="fault $point rank $rank $kind"
			run 60 run "$f32" --random-weights 5 --tokens 1,2,3 -n 4 --json --ignore-eos --tp 2 --device "$device" --timeout "$timeout_ms" \
				--fault "rank=$rank,at=$point,seq=$seq,kind=$kind"
			want=$(expected_code $point $rank $kind)
			if [ "$rc" -ne "$want" ]; then not_ok "$name" "exit $rc, not $want: $(head -c 300 "$err" | tr '\n' '|')"
			elif [ "$want" -ne 0 ] && ! one_line; then not_ok "$name" "not one clear line: $(head -c 300 "$err" | tr '\n' '|')"
			else ok "$name"; fi
		done
	done
done
finish
