#!/usr/bin/env bash
# Everything that only a GPU can show, in one command and at most ten minutes: `make gpu-check`, or this script in a bundle (make gpu-bundle).
# Usage: gpu_check.sh [--only PART[,PART...]] [--gpus N] [--device NAME] [--out DIR]
# Parts, in this order: kernels, cudnn, collectives, xccl, faults, verify, invariant, reference, plan, sanitizer, figures. docs/TESTING.md says what each shows.
# N is the number of GPUs of the machine unless given. What is checked and not timed runs at every world size: ranks share GPUs where there are too few.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 2
only= gpus= device=cuda out=docs/reports
passed=0 failed=0 skipped=0 child= table= slow=1
whole=600 # seconds for all parts

usage() {
	sed -n '2,5s/^# //p' "$0" >&2
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--only) only=,${2:?},; shift 2 ;;
	--gpus) gpus=${2:?}; shift 2 ;;
	--device) device=${2:?}; shift 2 ;;
	--out) out=${2:?}; shift 2 ;;
	*) usage ;;
	esac
done

# A bundle has the program beside it; in a checkout one is built, unless a bundle of the device's back end was brought along.
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
bundle=
[ -x "$root/tandem" ] && bundle=$root
if [ -z "$bundle" ] && [ "$device" = cuda ] && [ -x "$root/build/gpu-bundle/tandem" ]; then
	bundle=$root/build/gpu-bundle
	if [ "$commit" != unknown ] && [ "$(cat "$bundle/commit")" != "$commit" ]; then
		echo "gpu_check: build/gpu-bundle is of commit $(cat "$bundle/commit"), this checkout of $commit; run make gpu-bundle, or remove it to build here"
		exit 2
	fi
fi
if [ -n "$bundle" ]; then
	tandem=$bundle/tandem check=$bundle/check_gpu commit=$(cat "$bundle/commit")
else
	build=build/$device
	[ "$device" = emu ] && build=build/emu${WARP:-32}
	make -s -j"$(nproc)" BACKENDS="cpu $device" "$build/tandem" "$build/tests/gpu/check_gpu" || { echo "FAIL build"; exit 1; }
	tandem=$root/$build/tandem check=$root/$build/tests/gpu/check_gpu
fi
if [ -z "$gpus" ]; then
	case $device in
	cuda) gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') ;;
	hip) gpus=$(rocm-smi --showid 2>/dev/null | grep -c 'Device ID') ;;
	*) gpus=2 ;;
	esac
fi
[ "$gpus" -ge 1 ] 2>/dev/null || { echo "gpu_check: no GPU of kind $device was found; give --gpus N if there is one"; exit 1; }
logs=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX")
export TANDEM=$tandem GPU_DEVICE=$device GPU_COUNT=$gpus GPU_COMMIT=$commit GPU_LOGS=$logs PYTHONDONTWRITEBYTECODE=1

finish() {
	[ -n "$table" ] && cat "$table"
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
	exit
}

interrupted() {
	trap '' INT TERM
	[ -n "$child" ] && kill -TERM -- "-$child" 2>/dev/null
	echo "interrupted"
	failed=$((failed + 1))
	finish
}
trap interrupted INT TERM

# run_part NAME SECONDS COMMAND...: the command prints "N passed, N failed[, N skipped]" or is one check by its exit status.
run_part() {
	local name=$1 limit=$2 log=$logs/$1.log start code p f s
	shift 2
	case $only in '' | *,"$name",*) ;; *) return 0 ;; esac
	start=$(date +%s)
	limit=$((limit * slow))
	[ $((begun + whole * slow - start)) -lt $limit ] && limit=$((begun + whole * slow - start))
	[ $limit -lt 1 ] && limit=1 # the parts before it took all the time
	setsid timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null &
	child=$!
	wait "$child"
	code=$?
	child=
	read -r p f s < <(awk '/^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {p += $1; f += $3; s += $5}
		END {print p + 0, f + 0, s + 0}' "$log")
	if [ $code -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
	if [ $((p + f + s)) -eq 0 ]; then f=1; fi
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	printf '%-4s %-12s %4d passed %3d failed %3d skipped %4d s\n' "$([ "$f" -eq 0 ] && echo ok || echo FAIL)" "$name" "$p" "$f" "$s" \
		$(($(date +%s) - start))
	grep -E '^(note|skip)' "$log" | sort -u | sed 's/^/    /'
	[ "$f" -eq 0 ] && return 0
	[ $code -eq 124 ] && echo "    no end after $limit s"
	echo "    exit $code; $log:"
	grep -E '^FAIL' "$log" | head -10 | sed 's/^/    /'
	tail -5 "$log" | sed 's/^/    | /'
}

echo "gpu-check: $gpus GPU(s) of $device, $tandem of commit $commit, logs in $logs"
python=${PYTHON:-python3} begun=$(date +%s)
[ "$device" = emu ] && slow=10
quick=$([ "$device" = emu ] && echo --quick)
# What times nothing runs several processes at once, each with the words of one line. Eight took more than 30 s to open the GPU.
several=$(($(nproc) / 4))
[ $several -lt 1 ] && several=1
[ $several -gt 3 ] && several=3
export each="xargs -L 1 -P $several"
run_part kernels 120 bash -c '"$1" --list | sed "/^comm/d; /^xccl/d; /^attention_cudnn/d; s/ .*//; s/^/--op /" | paste -d" " - - - - | $each "$@"' - "$check" $quick
run_part cudnn 60 "$check" $quick --op attention_cudnn
run_part collectives 90 "$check" $quick --op comm
run_part xccl 60 "$check" $quick --op xccl
run_part faults 90 "$python" tests/gpu/faults.py
run_part verify 60 "$python" tests/gpu/compare.py verify
run_part invariant 90 "$python" tests/gpu/compare.py invariant
run_part reference 150 bash -c '"$@" --list | $each "$@"' - "$python" tests/gpu/reference.py
run_part plan 60 "$python" tests/gpu/compare.py plan
run_part sanitizer 120 bash -c '"$@" --list | $each "$@"' - bash tests/gpu/sanitizer.sh "$check"
mkdir -p "$out"
case $only in '' | *,figures,*) table=$logs/figures.md ;; esac
run_part figures 360 "$python" tests/gpu/figures.py "$out/gpu-check-$gpus.json" "$logs/figures.md"
[ -n "$table" ] && [ ! -s "$table" ] && table=
finish
