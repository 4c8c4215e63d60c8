# lib.sh: what the suites share: counting, running the program, and making broken models. Sourced by run.sh.

passed=0 failed=0 skipped=0
out=$work/stdout err=$work/stderr
rc=0 elapsed_ms=0

ok() { passed=$((passed + 1)); echo "ok $1"; }
not_ok() { failed=$((failed + 1)); echo "not ok $1: $2"; }
skip() { skipped=$((skipped + 1)); echo "skip $1: $2"; }

now_ms() { local t=${EPOCHREALTIME//[.,]/}; echo $((t / 1000)); }

# Address space of a program under test, KiB; a sanitizer needs far more than it uses.
limit_kib=$((6 << 20))
if nm "$tandem" 2>/dev/null | grep -q '__[at]san_init'; then limit_kib=unlimited; fi

# run SECONDS ARGUMENT...: the program with a time and a memory limit; sets rc, elapsed_ms, and the files $out and $err.
run() {
	local seconds=$1 start
	shift
	start=$(now_ms)
	(ulimit -v "$limit_kib"; exec timeout -k 2 "$seconds" "$tandem" "$@") >"$out" 2>"$err" </dev/null
	rc=$?
	elapsed_ms=$(($(now_ms) - start))
}

# One clear line: `tandem: <what>: <why>; <what to do>`. Warnings may stand before it.
one_line() {
	grep -v '^tandem: warning: ' "$err" >"$work/errors"
	[ "$(wc -l <"$work/errors")" -eq 1 ] && grep -Eq '^tandem: [^:]+: .+; .+' "$work/errors"
}

# refuses NAME CODE PATTERN ARGUMENT...: exit CODE within 10 s, nothing on stdout, one clear line that matches PATTERN.
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
