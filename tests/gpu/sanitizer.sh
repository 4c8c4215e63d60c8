#!/usr/bin/env bash
# compute-sanitizer on small shapes: memory accesses of all ops, races in shared memory of those that share it. Usage: sanitizer.sh CHECK_GPU
set -u
check=$1 passed=0 failed=0
tool=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
if [ ! -x "$tool" ]; then
	echo "skip sanitizer: there is no compute-sanitizer on this machine"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi

# one TOOL OP...
one() {
	local what=$1 ops=() op log
	shift
	for op in "$@"; do ops+=(--op "$op"); done
	log=$(mktemp)
	if timeout 60 "$tool" --tool "$what" --error-exitcode 9 --print-limit 5 "$check" --quick "${ops[@]}" >"$log" 2>&1; then
		passed=$((passed + 1))
		echo "ok   $what: $*"
	else
		failed=$((failed + 1))
		echo "FAIL $what: $*: exit $?"
		tail -30 "$log"
	fi
	rm -f "$log"
}

one memcheck rms_norm head_norm rope kv_write swiglu tree_sum gather_rows embed argmax sample
one memcheck attention attention_in gdn_in mlp_in
one racecheck rms_norm argmax sample
one racecheck attention
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
