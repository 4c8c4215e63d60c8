#!/usr/bin/env bash
# compute-sanitizer on small shapes: memory accesses of all ops, races in shared memory of those that share it. Usage: sanitizer.sh CHECK_GPU TOOL OP... | CHECK_GPU --list
set -u
check=$1 what=$2
shift 2
if [ "$what" = --list ]; then # the runs, a line each
	cat <<-RUNS
	memcheck rms_norm head_norm rope kv_write swiglu tree_sum gather_rows embed argmax sample
	memcheck attention attention_in gdn_in mlp_in
	racecheck rms_norm argmax sample
	racecheck attention
	RUNS
	exit 0
fi
tool=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
if [ ! -x "$tool" ]; then
	echo "skip sanitizer: there is no compute-sanitizer on this machine"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
export CUDA_MODULE_LOADING=LAZY # else the tool prepares every kernel of the program
ops=()
for op in "$@"; do ops+=(--op "$op"); done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
timeout 100 "$tool" --tool "$what" --error-exitcode 9 --print-limit 5 "$check" --quick "${ops[@]}" >"$log" 2>&1
code=$?
if [ $code -eq 0 ]; then
	echo "ok   $what: $*"
	echo "1 passed, 0 failed, 0 skipped"
else
	echo "FAIL $what: $*: exit $code"
	tail -30 "$log" | grep -vE '^[0-9]+ passed, [0-9]+ failed'
	echo "0 passed, 1 failed, 0 skipped"
fi
exit $code
