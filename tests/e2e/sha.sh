#!/usr/bin/env bash
# The contract of the CPU: one SHA-256 of the logits for every world size, thread count, chunk and instruction set.
. "$(dirname "$0")/lib/e2e.sh"

isas=
for isa in avx512 avx2 c; do
	if isa_works $isa; then isas="$isas $isa"; else skip "isa $isa" "this machine or build does not have it"; fi
done

matrix() { # NAME FOLDER TOKENS "DEGREES"
	local want found p threads chunk isa bad=0 count=0
	want=$(sum_logits "$2" --tokens "$3" --isa c --threads 1)
	case $want in exit*) not_ok "sha $1" "$want"; return ;; esac
	for p in $4; do
		for isa in $isas; do
			for threads in 1 8; do
				for chunk in 16 4096; do
					count=$((count + 1))
					found=$(sum_logits "$2" --tokens "$3" --tp "$p" --threads $threads --prefill-chunk $chunk --isa "$isa")
					[ "$found" = "$want" ] && continue
					bad=$((bad + 1))
					not_ok "sha $1 --tp $p --threads $threads --prefill-chunk $chunk --isa $isa" "$found, not $want"
				done
			done
		done
	done
	[ $bad -eq 0 ] && ok "sha $1: $count runs give ${want:0:12}"
}

for name in llama llama-tied llama-head-dim llama-12-heads llama-9-heads qwen3 mistral-window qwen3_5 qwen3_5-composite qwen3_next-dense; do
	tokens=$(json "$golden/$name/expect.json" cases 0 tokens)
	degrees=$(json "$golden/$name/expect.json" legal_tp | tr , ' ')
	matrix "$name" "$golden/$name" "$tokens" "$degrees"
done
if [ -d "$model" ]; then
	degrees=$(run 10 plan "$model" --json --tp 1,2,4,8 && for i in 0 1 2 3; do
		[ "$(json "$out" degrees $i legal)" = true ] && json "$out" degrees $i world_size; done)
	matrix "$model" "$model" 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20 "$degrees"
else
	skip "sha $model" "no such folder"
fi

# Who computes the logits is no matter of bits either.
for name in llama llama-tied; do
	want=$(sum_logits "$golden/$name" --tokens 1,2,3,4,5)
	for p in 2 4; do
		equal "sha $name --tp $p --lm-head rank0" hash "$(sum_logits "$golden/$name" --tokens 1,2,3,4,5 --tp $p --lm-head rank0)" "$want"
	done
done

# Nor is who holds which rows of the embedding: everybody all, or each its own (tied: those of its part of the head), at every legal world size.
for name in llama llama-tied llama-head-dim llama-12-heads llama-9-heads qwen3; do
	tokens=$(json "$golden/$name/expect.json" cases 0 tokens)
	want=$(sum_logits "$golden/$name" --tokens "$tokens")
	for p in $(json "$golden/$name/expect.json" legal_tp | tr , ' '); do
		equal "sha $name --tp $p --embedding vocab" hash "$(sum_logits "$golden/$name" --tokens "$tokens" --tp "$p" --embedding vocab)" "$want"
	done
	equal "sha $name --embedding vocab --lm-head rank0" hash "$(sum_logits "$golden/$name" --tokens "$tokens" --tp "$p" --embedding vocab --lm-head rank0)" "$want"
done

# --out: the bytes of that hash, whole, and nothing else in the folder.
mkdir "$work/out"
hash=$(sum_logits "$golden/llama" --tokens 1,2,3 --out "$work/out/f")
equal "logits --out: bytes" SHA-256 "$(sha256sum <"$work/out/f" | cut -d' ' -f1)" "$hash"
equal "logits --out: size" size "$(wc -c <"$work/out/f")" $((3 * 160 * 4))
equal "logits --out: no other file" files "$(ls "$work/out")" f
run 20 logits "$golden/llama" --tokens 1,160 --out "$work/out/g"
equal "logits --out: nothing after a failure" files "$(ls "$work/out")" f
# A link and a FIFO stay what they are, with the bytes behind them.
mkfifo "$work/out/fifo"
: >"$work/out/g"
ln -s g "$work/out/link"
sha256sum <"$work/out/fifo" >"$work/through" &
reader=$!
equal "logits --out FIFO" hash "$(sum_logits "$golden/llama" --tokens 1,2,3 --out "$work/out/fifo")" "$hash"
[ -p "$work/out/fifo" ] && ok "logits --out FIFO: it stays" || not_ok "logits --out FIFO: it stays" "$(ls -l "$work/out/fifo")"
[ -p "$work/out/fifo" ] || kill "$reader"
wait "$reader"
equal "logits --out FIFO: bytes" SHA-256 "$(cut -d' ' -f1 "$work/through")" "$hash"
equal "logits --out LINK" hash "$(sum_logits "$golden/llama" --tokens 1,2,3 --out "$work/out/link")" "$hash"
equal "logits --out LINK: it stays" link "$(readlink "$work/out/link")" g
equal "logits --out LINK: bytes" SHA-256 "$(sha256sum <"$work/out/g" | cut -d' ' -f1)" "$hash"
run 30 bench step "$golden/llama" --context 16 --steps 2 --prefill 16 --trace "$work/out/link"
equal "bench step --trace LINK" link "$rc $(readlink "$work/out/link") $(head -c 1 "$work/out/g")" "0 g {"
equal "--out, --trace: no other file" files "$(ls "$work/out" | tr '\n' ' ')" "f fifo g link "
finish
