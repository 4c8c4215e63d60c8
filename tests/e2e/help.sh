#!/usr/bin/env bash
# Help, version, and what the option parser refuses.
. "$(dirname "$0")/lib/e2e.sh"

succeeds "help" 5 --help && {
	cp "$out" "$work/help"
	for option in prompt prompt-file tokens max-tokens ignore-eos temp top-k top-p min-p repeat-penalty seed tp device devices threads isa \
		context prefill-chunk kv-block random-weights timeout fault whitelist device-memory target host port api-key served-model-name max-running max-queue max-body kv-tokens state-snapshots state-every drain \
		on-failure defaults sse-comments cors-origin requests rate concurrency input-len output-len lengths endpoint vocab token-ids goodput server batch steps prefill repeat rows hidden json out verbose phase families contexts keep reject budget quick resume any-order; do
		grep -Eq -- "--$option( |\$)" "$work/help" && ok "help lists --$option" || not_ok "help lists --$option" "it does not"
	done
	# Each line of an option that takes a value ends with its default.
	bad=$(sed -E ':all; N; $!b all; s/\n {32}/ /g' "$work/help" | grep -E '^  (-., |    )--[a-z-]+ [^ ]'  | grep -v '\]$' | head -1)
	equal "help shows defaults" "a line without one" "$bad" ""
}
for command in run logits plan prescreen verify serve tokenize "bench step" "bench serve" "bench gemm" "bench collective" "bench peak"; do
	# shellcheck disable=SC2086
	succeeds "help of $command" 5 $command --help || continue
	head -1 "$out" | grep -q "^Usage: tandem $command" && ok "help of $command" || not_ok "help of $command" "$(head -1 "$out")"
done
succeeds "version" 5 --version && { grep -Eq '^tandem [0-9]+\.[0-9]+\.[0-9]+$' "$out" && ok "version" || not_ok "version" "$(cat "$out")"; }

m=$golden/llama
refuses "no command" 2 'command: missing'
refuses "unknown command" 2 'serv.*unknown command' serv
refuses "command that does not exist" 2 'screen: unknown command' screen x
refuses "command with a typing error" 2 'did you mean run' rnu x
refuses "bench of what is none" 2 'bench foo: unknown command; see tandem bench --help' bench foo
refuses "bench with a typing error" 2 'bench gem: unknown command; did you mean bench gemm' bench gem x
refuses "--version with an argument" 2 "'x': one argument too many" --version x
refuses "--help with an argument" 2 "'x': one argument too many" --help x
refuses "--seed above its maximum" 2 'out of range; give a whole number from 0 to 9007199254740992' run "$m" --tokens 1 --seed 9007199254740993
for code in 141 143; do
	grep -q "Exit codes: .*$code" "$work/help" && "$tandem" --man tandem-run | grep -q "$code" && ok "exit code $code is told" || not_ok "exit code $code is told" "it is not"
done
refuses "bench alone" 2 'tandem bench --help' bench
refuses "model missing" 2 'MODEL is missing' run
refuses "two models" 2 'too many' run a b
refuses "--tp abc" 2 "^tandem: --tp 'abc': not a number; give a whole number from 1 to 64\$" run "$m" --tp abc
refuses "--tp 0" 2 'out of range' run "$m" --tp 0
refuses "--tp 99999999999999999999" 2 'out of range' run "$m" --tp 99999999999999999999
refuses "--tp=" 2 'not a number' run "$m" --tp=
refuses "--tp without a value" 2 'value missing' run "$m" --tp
refuses "--tp twice" 2 'given twice' run "$m" --tp 1 --tp=1
refuses "-n 1.5" 2 'not a whole number' run "$m" -n 1.5
refuses "--temp nan" 2 'not a number' run "$m" --temp nan
refuses "--isa sse" 2 'one of auto' run "$m" --isa sse
refuses "--tokens 1,x" 2 "item 2, 'x'" run "$m" --tokens 1,x
refuses "unknown option" 2 'did you mean --threads' run "$m" --thread 2
refuses "option of another command" 2 'not an option of' plan "$m" --temp 1
refuses "option before the command" 2 'after the command' --tp 2 run "$m"
refuses "plan --target that is none" 2 'gfx936, gfx90a, gfx942, h200, a100, cpu' plan "$m" --target h300
refuses "plan --target, file missing" 3 'nofile.json' plan "$m" --target "$work/nofile.json"
refuses "prompt in two ways" 2 'two ways' run "$m" -p a --tokens 1
refuses "no prompt" 2 'prompt: missing' run "$m"
refuses "whitelist that is missing" 3 'nofile.json' run "$m" --tokens 1 --json --whitelist "$work/nofile.json"
refuses "fault that is none" 2 'at=open\|load\|reserve\|barrier\|ready\|kernel\|sample\|shutdown,seq' run "$m" --tokens 1 --json --fault rank=0,at=nowhere
refuses "device that is none" 2 'device' run "$m" --tokens 1 --json --device abacus
refuses "--devices for too few ranks" 2 'devices' run "$m" --tokens 1 --json --tp 2 --devices 0
refuses "--kv-block 17" 2 '16' run "$m" --tokens 1 --json --kv-block 17
refuses "a newline in a value" 2 'not a number' run "$m" --tp $'1\n2'
finish
