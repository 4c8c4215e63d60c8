#!/usr/bin/env bash
# Mixed traffic on a server whose ranks fail now and then (tests/soak/soak.c says what is checked). SOAK_REQUESTS: 1000, about half a
# minute; `make soak` sends 10000.
. "$(dirname "$0")/lib/e2e.sh"
requests=${SOAK_REQUESTS:-1000}
if ! [ -f "$model/model.safetensors" ]; then
	skip "soak" "no model in $model"
	finish
fi

# A sanitizer keeps freed memory back and has memory of its own; it tells of leaks itself.
growth=48
[ "$limit_kib" = unlimited ] && growth=1024

# Failures at steps that the traffic surely reaches (more than one a request), of all kinds, on both ranks.
faults='' count=0
for fault in rank=1,at=kernel,kind=error rank=0,at=barrier,kind=error rank=1,at=kernel,kind=exit rank=0,at=sample,kind=error rank=1,at=kernel,kind=stall:15000 \
	rank=0,at=kernel,kind=oom rank=1,at=reserve,kind=oom; do
	[ $((count * 300)) -lt "$requests" ] || break
	count=$((count + 1))
	faults+="${faults:+;}$fault,seq=$((count * requests / 8))"
done

# soak NAME FAILURES ARGUMENT...: a server with these options and the traffic.
soak() {
	local name=$1 failures=$2 pid port='' log=$work/server i
	shift 2
	: >"$log"
	"$tandem" serve "$model" --port 0 --tp 2 --max-running 8 "$@" 2>"$log" &
	pid=$!
	for ((i = 0; i < 600; i++)); do
		port=$(sed -n 's/^tandem: serving .* on http:\/\/127\.0\.0\.1:\([0-9]*\) .*/\1/p' "$log")
		if [ -n "$port" ] || ! kill -0 $pid 2>/dev/null; then break; fi
		sleep 0.1
	done
	if [ -z "$port" ]; then
		not_ok "$name" "the server did not start: $(head -c 300 "$log" | tr '\n' '|')"
		return
	fi
	"$build/tests/soak/soak" "http://127.0.0.1:$port" --requests "$requests" --failures "$failures" --growth "$growth" --seed "${SOAK_SEED:-1}" >"$out" 2>&1
	sed "s/^\(ok\|NOT OK\)  */\1 $name: /; s/^NOT OK/not ok/; / passed, /d" "$out"
	read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$out")
	passed=$((passed + ${p:-0})) failed=$((failed + ${f:-1}))
	kill $pid
	wait $pid
	equal "$name: the server ends well" "exit" $? 0
}

soak "no failures" 0
soak "$count failures" "$count" --timeout 5000 --fault "$faults"
finish
