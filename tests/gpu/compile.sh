#!/usr/bin/env bash
# Compiles and links the program and the GPU checker with the vendors' compilers, as far as they are installed: nvcc for sm_90a, hipcc for gfx90a
# and gfx906. Nothing of it is run: that takes a GPU (make gpu-check). Ends with "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/../.." || exit 2
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT

# built VENDOR CODE...: builds, and looks whether the program holds device code: each target by name (HIP), or the section of it (CUDA).
built() {
	local vendor=$1 code
	shift
	if ! make -s -j"${JOBS:-$(nproc)}" WERROR=1 BACKENDS="cpu $vendor" "build/$vendor/tandem" "build/$vendor/tests/gpu/check_gpu" >"$log" 2>&1; then
		failed=$((failed + 1))
		echo "not ok $vendor: does not build"
		grep -E 'error|undefined|Error' "$log" | head -20
		return
	fi
	for code in "$@"; do
		if grep -qa -- "$code" "build/$vendor/tandem"; then
			passed=$((passed + 1))
			echo "ok $vendor: builds, with device code: $code"
		else
			failed=$((failed + 1))
			echo "not ok $vendor: the program has no device code: $code"
		fi
	done
}

skip() {
	skipped=$((skipped + 1))
	echo "skip $1: $2"
}

if command -v nvcc >/dev/null; then
	home=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
else
	home=/usr/local/cuda
fi
if [ -x "$home/bin/nvcc" ]; then CUDA_HOME=$home built cuda .nv_fatbin; else skip cuda "no nvcc on the PATH or in /usr/local/cuda"; fi
if command -v hipcc >/dev/null; then built hip amdhsa--gfx90a amdhsa--gfx906; else skip hip "no hipcc"; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
