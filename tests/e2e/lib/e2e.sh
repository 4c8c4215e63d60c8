# e2e.sh: what the suites share: counting, running the program, making broken models. Every suite sources it first and ends with `finish`.
#
# A suite is run as `tests/e2e/NAME.sh [-b BUILD] [-m MODEL]` and needs bash, awk and coreutils. BUILD holds the program `tandem` and
# `tests/e2e/json_get` (make e2e builds both); default: $E2E_BUILD or build. MODEL is a model folder with a tokenizer; default:
# models/demo, what needs it is skipped if it is not there. Each case prints `ok NAME`, `not ok NAME: why` or `skip NAME: why`.

set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../../.." || exit 2
build=${E2E_BUILD:-build}
model=models/demo
while getopts b:m: option; do
	case $option in
	b) build=$OPTARG ;;
	m) model=$OPTARG ;;
	*) exit 2 ;;
	esac
done
tandem=$build/tandem
json_get=$build/tests/e2e/json_get
golden=tests/golden
for program in "$tandem" "$json_get"; do
	[ -x "$program" ] || { echo "$program: missing; run make e2e" >&2; exit 2; }
done
work=$(mktemp -d "${TMPDIR:-/tmp}/tandem-e2e.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT

passed=0 failed=0 skipped=0
out=$work/stdout err=$work/stderr
rc=0 elapsed_ms=0

ok() { passed=$((passed + 1)); echo "ok $1"; }
not_ok() { failed=$((failed + 1)); echo "not ok $1: $2"; }
skip() { skipped=$((skipped + 1)); echo "skip $1: $2"; }

finish() {
	echo "$passed passed, $failed failed, $skipped skipped"
	exit $((failed != 0))
}

now_ms() { local t=${EPOCHREALTIME//[.,]/}; echo $((t / 1000)); }

# Address space of a program under test, KiB; a sanitizer needs far more than it uses.
limit_kib=$((6 << 20))
if nm "$tandem" 2>/dev/null | grep -q '__[at]san_init'; then limit_kib=unlimited; fi

# A limit is there against hangs: on a busy machine ranks that wait for each other are many times slower. What must be quick looks at elapsed_ms.
patience=6

# run SECONDS ARGUMENT...: the program with a limit of $patience times that and one of memory; sets rc, elapsed_ms, and the files $out and $err.
run() {
	local seconds=$1 start
	shift
	start=$(now_ms)
	(ulimit -v "$limit_kib"; exec timeout -k 2 $((seconds * patience)) "$tandem" "$@") >"$out" 2>"$err" </dev/null
	rc=$?
	elapsed_ms=$(($(now_ms) - start))
}

# One clear line: `tandem: <what>: <why>; <what to do>`. Warnings may stand before it.
one_line() {
	grep -v '^tandem: warning: ' "$err" >"$work/errors"
	[ "$(wc -l <"$work/errors")" -eq 1 ] && grep -Eq '^tandem: [^:]+: .+; .+' "$work/errors"
}

# refuses NAME CODE PATTERN ARGUMENT...: exit CODE, nothing on stdout, one clear line that matches PATTERN.
refuses() {
	local name=$1 code=$2 pattern=$3
	shift 3
	run 10 "$@"
	if [ "$rc" -ne "$code" ]; then not_ok "$name" "exit $rc, not $code: $(head -c 300 "$err" | tr '\n' '|')"
	elif ! one_line; then not_ok "$name" "not one clear line: $(head -c 300 "$err" | tr '\n' '|')"
	elif ! grep -Eq -- "$pattern" "$work/errors"; then not_ok "$name" "no '$pattern' in: $(cat "$work/errors")"
	elif [ -s "$out" ]; then not_ok "$name" "stdout is not empty"
	else ok "$name"; fi
}

# succeeds NAME SECONDS ARGUMENT...: exit 0; the caller looks at $out.
succeeds() {
	local name=$1 seconds=$2
	shift 2
	run "$seconds" "$@"
	[ "$rc" -eq 0 ] && return 0
	not_ok "$name" "exit $rc: $(head -c 300 "$err" | tr '\n' '|')"
	return 1
}

# json FILE KEY...: the value at that path; arrays of numbers as 1,2,3.
json() { local file=$1; shift; "$json_get" "$@" <"$file"; }

# equal NAME WHAT FOUND EXPECTED
equal() {
	if [ "$3" = "$4" ]; then ok "$1"; else not_ok "$1" "$2 is '${3:0:200}', not '${4:0:200}'"; fi
}

# copy_model NAME: a private copy of a golden model; prints its folder.
copy_model() {
	local folder
	folder=$(mktemp -d "$work/model.XXXXXX")
	cp "$golden/$1"/*.json "$golden/$1"/*.safetensors "$folder"
	echo "$folder"
}

# Eight bytes, little endian.
u64() {
	local i value=$1
	for i in 0 1 2 3 4 5 6 7; do printf "\\$(printf %03o $(((value >> (8 * i)) & 255)))"; done
}

header_bytes() { od -An -tu8 -N8 "$1" | tr -d ' '; }

# edit_header FILE SED_EXPRESSION: rewrites the JSON header of a safetensors file, and its length.
edit_header() {
	local n
	n=$(header_bytes "$1")
	tail -c +9 "$1" | head -c "$n" | LC_ALL=C sed -E "$2" >"$work/header"
	tail -c +$((n + 9)) "$1" >"$work/data"
	{ u64 "$(wc -c <"$work/header")"; cat "$work/header" "$work/data"; } >"$1"
}

# set_config FOLDER KEY VALUE: replaces a value of config.json.
set_config() { sed -i -E "s/(\"$2\": )[^,]*(,?)\$/\\1$3\\2/" "$1/config.json"; }

# isa_works NAME: whether this machine and build have it.
isa_works() {
	run 20 logits "$golden/llama" --tokens 1 --isa "$1"
	[ "$rc" -eq 0 ]
}

sum_logits() { # ARGUMENT...: the printed hash, or "exit N"
	run 120 logits "$@"
	if [ "$rc" -eq 0 ]; then cat "$out"; else echo "exit $rc: $(head -1 "$err")"; fi
}
