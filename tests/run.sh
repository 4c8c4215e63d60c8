#!/usr/bin/env bash
# Runs test programs, adds up their counts, ends with "N passed, N failed, N skipped". Usage: tests/run.sh SUITE...
# A suite is a name of the table below; `make test` gives the whole list. A program that crashes, hangs past its limit or prints no
# count is one failure. Skips say why; set TANDEM_NO_SKIPS=1 to count an unexpected one as a failure.
set -u
cd "$(dirname "$0")/.." || exit 2
passed=0 failed=0 skipped=0
log_dir=build/logs
mkdir -p "$log_dir"

# count LABEL LIMIT COMMAND...: runs it, reads cmocka's closing lines or "N passed, N failed[, N skipped]".
count() {
	local label=$1 limit=$2 log start seconds p f s code
	shift 2
	log=$log_dir/$(echo "$label" | tr -c 'A-Za-z0-9_\n' '-').log
	start=$(date +%s)
	timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null
	code=$?
	seconds=$(($(date +%s) - start))
	read -r p f s < <(awk '
		/^\[  PASSED  \] [0-9]+ test/ {p = $4}
		/^\[  FAILED  \] [0-9]+ test/ {f = $4}
		/^\[  SKIPPED \] [0-9]+ test/ {s = $4}
		/^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {p = $1; f = $3; s = $5 + 0}
		END {print p + 0, f + 0, s + 0}' "$log")
	if [ $code -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
	if [ $((p + f + s)) -eq 0 ]; then f=1; fi
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	printf '%-34s %5d passed %3d failed %3d skipped  %4ds\n' "$label" "$p" "$f" "$s" "$seconds"
	if [ "$s" -gt 0 ]; then grep -iE '(^|[^a-z])skip' "$log" | head -5 | sed 's/^/    /'; fi
	if [ "$f" -gt 0 ]; then
		[ $code -eq 124 ] && echo "    no end after $limit s"
		echo "    exit $code; the end of $log:"
		grep -vE '^\[ +(RUN|OK) +\]' "$log" | tail -25 | sed 's/^/    /'
	fi
}

units() { # DIR LABEL LIMIT
	local program
	for program in "$1"/test_*; do
		[ -x "$program" ] && [ ! -d "$program" ] && case $program in *.d) ;; *) count "$2 $(basename "$program")" "$3" "$program" ;; esac
	done
}

fuzzers() { # DIR LABEL SECONDS
	local program name
	for program in "$1"/fuzz_*; do
		case $program in *.d) continue ;; esac
		[ -x "$program" ] || continue
		name=$(basename "$program")
		count "$2 $name" $(($3 * 10 + 60)) "$program" -seconds "$3" "tests/fuzz/corpus/${name#fuzz_}"
	done
}

for suite in "$@"; do
	case $suite in
	layers) count layers 120 bash tests/layers.sh ;;
	unit) units build/tests/unit unit 300 ;;
	sim) count "sim (scheduler, KV)" 120 build/tests/sim/sim ;;
	check) count "check (ops, all isas)" 900 build/tests/check/check ;;
	mutation) count "mutation" 3600 bash tests/mutation.sh ;;
	e2e) for s in tests/e2e/*.sh; do count "e2e $(basename "$s" .sh)" 1500 bash "$s"; done ;;
	fuzz) fuzzers build/tests/fuzz fuzz "${FUZZ_SECONDS:-5}" ;;
	model-check) count "model-check (spin)" 900 bash tests/promela/run.sh ;;
	asan) units build/asan/tests/unit "asan" 600
		count "asan check" 1500 build/asan/tests/check/check --quick
		count "asan sim" 300 build/asan/tests/sim/sim --workloads 100
		fuzzers build/asan/tests/fuzz "asan" "${FUZZ_SECONDS:-5}" ;;
	tsan) units build/tsan/tests/unit "tsan" 900 ;;
	emu32 | emu64) # the GPU's sources on the emulated device
		count "$suite device itself" 300 "build/$suite/tests/gpu/emu/test_emu"
		count "$suite gpu-check" 1500 env WARP="${suite#emu}" bash tests/gpu/gpu_check.sh --device emu --gpus 2 --only kernels,cudnn,collectives,invariant,plan \
			--out "build/$suite/reports"
		degrees="1 2 4"
		[ "$suite" = emu64 ] && degrees=2 # the engine does not know the width
		count "$suite engine" 1500 env E2E_BUILD="build/$suite" DEVICE=emu DEGREES="$degrees" bash tests/gpu/engine.sh ;;
	emu-asan)
		count "asan emu64 device itself" 600 build/asan/emu64/tests/gpu/emu/test_emu
		count "asan emu64 kernels" 1500 build/asan/emu64/tests/gpu/check_gpu --quick ;;
	gpu-compile) count "gpu-compile" 2400 bash tests/gpu/compile.sh ;;
	python) for s in tests/python/*.sh; do count "$(basename "$s" .sh)" 1800 bash "$s"; done ;;
	*) echo "tests/run.sh: unknown suite '$suite'" >&2; exit 2 ;;
	esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
