#!/usr/bin/env bash
# The layers of src/, headers that stand alone, waits that end. Ends with "N passed, N failed"; each offence is a line file:line: why.
#   1. Each #include in a folder of src/ names only folders that its line in `allowed` below lists. A folder that is not in the table,
#      a path with "..", and a header without a folder (but for tandem.h above the engine) are offences too.
#   2. Every header of src/ and include/ compiles alone as C17; tandem.h and what .cu files include or may include, as C++17 (device code only so).
#   3. No wait (a call of stream_sync or wait_change and its kin) is given UINT64_MAX for a deadline (C2).
# Usage: tests/layers.sh [ROOT]. Before it judges ROOT (the repository), it must find offences planted in trees of its own.
set -u
cd "$(dirname "$0")/.." || exit 2
root=${1:-.}
cc=${CC:-cc} cxx=${CXX:-c++}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# folder: the folders it may include. Above = base text model device comm engine prescreen serve apps, in this order, less what a folder
# must not know: client nothing but base, text no models or devices, model, device, comm, engine and prescreen no text, device and comm no model, prescreen no
# groups, serve the engine by tandem.h alone.
allowed='
base: base
text: base text
model: base model
device: base device
comm: base device comm
engine: base model device comm engine tandem.h
prescreen: base model device engine prescreen tandem.h
serve: base text serve tandem.h
client: base client
apps: base text model device comm engine prescreen serve client apps tandem.h'

# Offences of rule 1 in the tree $1, one a line.
includes() {
	(cd "$1" && find src -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z |
		xargs -0r awk -v table="$allowed" '
		BEGIN {
			n = split(table, lines, "\n")
			for (i = 1; i <= n; i++) {
				m = split(lines[i], words, /[: ]+/)
				if (words[1] == "") continue
				known[words[1]] = 1
				for (j = 2; j <= m; j++) may[words[1], words[j]] = 1
			}
		}
		FNR == 1 {
			split(FILENAME, part, "/")
			here = part[2]
			if (!(here in known)) print FILENAME ":1: folder " here " is not in the table of layers"
		}
		/^[ \t]*#[ \t]*include[ \t]*["<]/ {
			name = $0
			sub(/^[^"<]*["<]/, "", name)
			sub(/[">].*/, "", name)
			quoted = $0 ~ /include[ \t]*"/
			first = name
			sub(/\/.*/, "", first)
			if (!quoted && !(first in known && name ~ /\//)) next # a system header
			if (name ~ /(^|\/)\.\.(\/|$)/) why = "path with .."
			else if (name !~ /\// && name != "tandem.h") why = "header without a folder"
			else if (!((here, first) in may)) why = here " may not include " first
			else next
			print FILENAME ":" FNR ": " name ": " why
		}')
}

# Offences of rule 2 in the tree $1. GPU headers are compiled for the emulated device; those for one vendor's compiler (vendor/cuda.h, vendor/hip.h,
# *_cuda.h) are left to the suite gpu-compile, and vendor/emu.h is a part of runtime.h.
headers() {
	local tree=$1 header flags isa languages seen_by_cu
	flags=$(pkg-config --cflags jansson libpcre2-8 libutf8proc hwloc libmd 2>/dev/null)
	seen_by_cu=$(cd "$tree" && find src -name '*.cu' -exec sed -n 's/^#include "\(.*\)"/src\/\1/p' {} + | sort -u)
	# shellcheck disable=SC2086
	while IFS= read -r header; do
		isa='' languages=c
		case $header in
		*_avx2.h) isa='-mavx2 -mfma -mf16c' ;;
		*_avx512.h) isa='-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c' ;;
		# Not a header but the body of isa_*.c, over the vector type that the line before its #include defines.
		src/device/cpu/kernels_vec.h | src/device/cpu/kernels_gdn.h) continue ;;
		src/device/gpu/vendor/cuda.h | src/device/gpu/vendor/hip.h | src/device/gpu/vendor/emu.h | *_cuda.h) continue ;;
		esac
		case $(uname -m):$isa in x86_64:* | *:) ;; *) continue ;; esac
		case $header in
		# device.h is for host code: it holds C atomics, which C++17 lacks.
		src/device/device.h | src/device/cpu/*) ;;
		include/tandem.h | src/device/[a-z]*.h | src/base/status.h | src/base/dtype.h | src/base/sumtree.h)
			case $header in src/device/*/*) ;; *) languages="c c++" ;; esac ;;
		esac
		case "
$seen_by_cu
" in *"
$header
"*) languages="c c++" ;; esac
		# Device code: templates and the device's words are C++.
		case $header in */gpu/*) isa='-DGPU_EMU -DGPU_NAME=emu -DGPU_WARP=32' ;; esac
		case $header in
		src/device/gpu/gpu.h) languages=c++ ;;
		*/gpu/*) if grep -q '^#include "device/gpu/gpu.h"' "$tree/$header"; then languages=c++; fi ;;
		esac
		case $languages in *c++)
			if ! $cxx -std=c++17 -Wall -Wextra -Werror $isa -I"$tree/src" -I"$tree/include" -fsyntax-only -x c++ "$tree/$header" 2>"$work/log"; then
				echo "$header:1: does not compile alone as C++17: $(grep -m1 error "$work/log")"
			fi ;;
		esac
		[ "$languages" = c++ ] && continue
		if ! $cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -I"$tree/src" -I"$tree/include" $flags $isa -fsyntax-only -x c "$tree/$header" 2>"$work/log"; then
			echo "$header:1: does not compile alone as C17: $(grep -m1 error "$work/log")"
		fi
	done < <(cd "$tree" && find src include -name '*.h' 2>/dev/null | sort)
}

# Offences of rule 3 in the tree $1.
waits() {
	(cd "$1" && grep -rnE '(stream_sync|wait_change[a-z_]*)\(.*UINT64_MAX' src | sed -E 's/^([^:]*:[0-9]+):.*/\1: a wait without a deadline/')
}

verdict() { # TEXT OFFENCES
	if [ -z "$2" ]; then
		passed=$((passed + 1))
		echo "ok      $1"
	else
		failed=$((failed + 1))
		echo "NOT OK  $1"
		printf '%s\n' "$2"
	fi
}

# planted RULE FILE LINE TEXT: a tree whose only offence is LINE of FILE must give exactly one complaint, about FILE:LINE.
planted() {
	local rule=$1 file=$2 line=$3 text=$4 found
	rm -rf "$work/tree"
	mkdir -p "$work/tree/$(dirname "$file")" "$work/tree/src/base" "$work/tree/src/device/gpu" "$work/tree/include"
	echo '#include "device/gpu/seen.h"' >"$work/tree/src/device/gpu/seen.cu"
	echo 'enum ok { OK };' >"$work/tree/src/base/ok.h"
	printf '%b' "$text" >"$work/tree/$file"
	found=$($rule "$work/tree")
	case $found in
	*$'\n'*) verdict "planted in $file" "more than one complaint: $found" ;;
	"$file:$line: "*) verdict "planted in $file is found: ${found#*: }" "" ;;
	*) verdict "planted in $file" "not found; got '$found'" ;;
	esac
}

planted includes src/text/a.c 2 '#include <stdio.h>\n#include "model/plan.h"\n#include "base/ok.h"\n'
planted includes src/device/gpu/a.cu 1 '#include "comm/group.h"\n'
planted includes src/device/a.c 3 '\n\n  #  include <model/plan.h>\n'
planted includes src/engine/a.c 1 '#include "text/tokenizer.h"\n#include "tandem.h"\n'
planted includes src/engine/b.c 1 '#include "prescreen/results.h"\n'
planted includes src/device/b.c 1 '#include "prescreen/kernels.h"\n'
planted includes src/prescreen/a.c 1 '#include "serve/http.h"\n'
planted includes src/base/a.h 1 '#include "text/tokenizer.h"\n'
planted includes src/comm/a.c 1 '#include "model/plan.h"\n#include "device/device.h"\n'
planted includes src/model/a.c 1 '#include "tandem.h"\n'
planted includes src/serve/a.c 1 '#include "apps/options.h"\n'
planted includes src/serve/b.c 1 '#include "device/tensor.h"\n'
planted includes src/serve/c.c 1 '#include "engine/rank.h"\n'
planted includes src/base/b.c 1 '#include "base/../comm/group.h"\n'
planted includes src/base/c.c 1 '#include "ok.h"\n'
planted includes src/extra/a.c 1 'int a;\n'
planted headers src/base/needy.h 1 'size_t needs_a_header(void);\n'
planted headers src/device/gpu/seen.h 1 'struct seen { int class; };\n'
planted headers src/device/view.h 1 'struct view { int class; int *restrict p; };\n'

planted waits src/engine/a.c 2 '\nst = vt->stream_sync(stream, UINT64_MAX, flag, err);\n'

verdict "every include of src/ goes up the table" "$(includes "$root")"
verdict "every header stands alone ($(cd "$root" && find src include -name '*.h' | wc -l))" "$(headers "$root")"
verdict "every wait has a deadline" "$(waits "$root")"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
