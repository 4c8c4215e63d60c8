#!/usr/bin/env bash
# make install and uninstall, and whether what they install works: manual, completion, library with pkg-config, systemd unit.
. "$(dirname "$0")/lib/e2e.sh"

root=$work/root prefix=/opt/tandem
installed=$root$prefix
install() { make -s "$1" BUILD="$build" DESTDIR="$root" PREFIX="$prefix" >"$out" 2>"$err"; }

# check NAME COMMAND...: ok if it succeeds and writes nothing on stderr.
check() {
	local name=$1
	shift
	if "$@" >"$out" 2>"$err" && ! [ -s "$err" ]; then ok "$name"; else not_ok "$name" "$(cat "$out" "$err" | head -c 600 | tr '\n' '|')"; fi
}

mkdir -p "$installed/lib"
echo other >"$installed/lib/libother.a"
if install install; then ok "make install"; else
	not_ok "make install" "$(head -c 600 "$err")"
	finish
fi
equal "nothing is outside the prefix" "another file" "$(cd "$root" && find . -type f ! -path "./opt/tandem/*")" ""
equal "no file names the staging folder" "a file" "$(grep -rIl "$root" "$root")" ""
check "the installed command runs" "$installed/bin/tandem" --version

# Manual: a page for each command and one for all, without a warning.
pages=$("$tandem" --man)
equal "pages are installed" "list" "$(cd "$installed/share/man/man1" && printf '%s\n' *.1 | sort)" "$(printf '%s.1\n' $pages | sort)"
for page in $pages; do
	file=$installed/share/man/man1/$page.1
	if command -v mandoc >/dev/null; then
		# That a page has no date is meant: it has a version, and builds stay reproducible.
		lint=$(mandoc -T lint -W warning "$file" 2>&1 | grep -v 'missing date')
		equal "mandoc likes $page" "it" "$lint" ""
	fi
	if command -v groff >/dev/null; then
		equal "groff likes $page" "it" "$(groff -man -ww -z -Tutf8 "$file" 2>&1)" ""
	elif ! command -v mandoc >/dev/null; then
		skip "$page" "neither mandoc nor groff is installed"
	fi
	[ "$page" = tandem ] && continue
	# Each option that help shows stands in the page, and no other.
	words=${page#tandem-}
	case $words in bench-*) words="bench ${words#bench-}" ;; prescreen-*) words="prescreen ${words#prescreen-}" ;; esac
	# shellcheck disable=SC2086
	helped=$("$tandem" $words --help | grep -oE '^  (-., |    )--[a-z-]+' | grep -oE -- '--.*' | sort)
	paged=$(grep -oE '^(\\fB\\-.\\fR, )?\\fB\\-(\\-[a-z]+)+' "$file" | sed 's/.*fB//; s/\\//g' | sort)
	equal "options of $page" "list" "$paged" "$helped"
	grep -q '^\.SH EXAMPLES' "$file" && ok "$page has text of its own" || not_ok "$page has text of its own" "see details in src/apps/manual.c"
done
refuses "a page that is none" 2 'no such page' --man tandem-walk

# Completion, in a bash of its own without any completion package: complete WORD... prints what TAB offers for the last word.
complete() {
	bash --norc --noprofile -c '
		source "$0"
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		_tandem 2>&1
		printf "%s\n" "${COMPREPLY[@]}" | sort | tr "\n" " "' "$installed/share/bash-completion/completions/tandem" tandem "$@"
}
check "completion is accepted by bash" bash -n "$installed/share/bash-completion/completions/tandem"
equal "completion of a command" "offer" "$(complete ver)" "verify "
equal "completion of bench" "offer" "$(complete bench p)" "peak "
equal "completion of an option" "offer" "$(complete run models/demo --top-)" "--top-k --top-p "
equal "completion of a second word after a command" "offer" "$(complete prescreen d)" "diff "
equal "completion of what is no second word" "offer" "$(complete prescreen --bud)" "--budget "
equal "completion of an option of two words" "offer" "$(complete bench step x --bat)" "--batch "
equal "completion of a choice" "offer" "$(complete run x --isa avx)" "avx2 avx512 "
equal "completion after =" "offer" "$(complete run x --isa = avx5)" "avx512 "
equal "completion leaves numbers alone" "offer" "$(complete run x --tp '')" " "
equal "completion of a file" "offer" "$(complete run x --prompt-file Makef)" "Makefile "
equal "completion of a model" "offer" "$(complete run tests/gold)" "tests/golden "
equal "completion knows no option of another command" "offer" "$(complete plan x --temp)" " "

# The library: the example with what pkg-config says, as C and as C++; only tandem_* can be seen in it.
export PKG_CONFIG_PATH=$installed/lib/pkgconfig
check "pkg-config knows tandem" pkg-config --exists --print-errors tandem
equal "version by pkg-config" "it" "$(pkg-config --modversion tandem)" "$("$tandem" --version | cut -d' ' -f2)"
flags=$(pkg-config --cflags --libs tandem | sed "s|$prefix|$installed|g")
equal "only tandem_* is visible in the library" "also" "$(nm -g --defined-only "$installed/lib/libtandem.a" 2>/dev/null | awk 'NF == 3 {print $3}' | grep -v '^tandem_' | head -3)" ""
san=
if nm "$tandem" 2>/dev/null | grep -q __asan_init; then san=-fsanitize=address,undefined; fi
if nm "$tandem" 2>/dev/null | grep -q __tsan_init; then san=-fsanitize=thread; fi
# shellcheck disable=SC2086
check "the example compiles" "${CC:-cc}" -std=c17 -Wall -Wextra -Werror $san examples/generate.c -o "$work/generate" $flags
expected=$("$tandem" run "$golden/llama" --tokens 1,92,109,107 -n 16 --json | "$json_get" tokens)
for ranks in 1 2; do
	equal "the example on $ranks ranks gives the ids of tandem run" "list" \
		"$("$work/generate" "$golden/llama" $ranks 1 92 109 107 | paste -sd, -)" "$expected"
done
"$work/generate" "$work/none" 1 1 2>"$err"
equal "the example reports an error" "exit" "$?:$(wc -l <"$err")" 3:1
cat >"$work/link.cc" <<'END'
#include <tandem.h>
#include <cstdio>
void *mem_map() { return nullptr; } // a name that the library has inside
int main() { std::puts(tandem_status_name(0)); return mem_map() != nullptr; }
END
# shellcheck disable=SC2086
if command -v c++ >/dev/null; then
	check "a C++ program links it" c++ -std=c++17 -Wall $san "$work/link.cc" -o "$work/link" $flags
	equal "a C++ program runs" "it" "$("$work/link" 2>&1)" ok
else
	skip "a C++ program links it" "no C++ compiler"
fi
equal "the example is short" "lines over 45" "$(awk 'END {print (NR > 45 ? NR : "")}' examples/generate.c)" ""

# The unit. `verify` wants the program where the unit says it is.
unit=$installed/lib/systemd/system/tandem.service
grep -q "^ExecStart=$prefix/bin/tandem serve " "$unit" && ok "the unit starts the installed command" || not_ok "the unit starts the installed command" "$(grep ExecStart "$unit")"
if command -v systemd-analyze >/dev/null; then
	sed "s|$prefix|$installed|g" "$unit" >"$work/tandem.service"
	equal "systemd-analyze verify" "it" "$(systemd-analyze verify --man=no "$work/tandem.service" 2>&1 | grep -F tandem.service)" ""
else
	skip "systemd-analyze verify" "not installed"
fi

echo other >"$installed/share/man/man1/tandem-bicycle.1"
check "make uninstall" install uninstall
equal "uninstall leaves what is not ours" "rest" "$(cd "$root" && find . -type f | sort | tr '\n' ' ')" ".$prefix/lib/libother.a .$prefix/share/man/man1/tandem-bicycle.1 "
check "make uninstall, of nothing" install uninstall

# A blank, and what the shell and sed take for something else: nothing beside the prefix is touched, and what is installed works.
prefix="/opt/s p'&x" installed="$root/opt/s p'&x"
mkdir -p "$root/opt"
echo other >"$root/opt/s"
check "make install, a blank in the prefix" install install
check "the installed command runs, a blank in the prefix" "$installed/bin/tandem" --version
equal "pkg-config, a blank in the prefix" "flags" "$(PKG_CONFIG_PATH=$installed/lib/pkgconfig pkg-config --variable=prefix tandem)" "$prefix"
sed "s|^prefix=.*|prefix=$root/opt/s p|; s|^libdir=.*|libdir=$root/opt/s p/lib|" "$installed/lib/pkgconfig/tandem.pc" >"$work/tandem.pc"
flags=$(PKG_CONFIG_PATH=$work pkg-config --cflags --libs tandem)
case $flags in *"/s\\ p/include"*) ok "flags, a blank in the prefix" ;; *) not_ok "flags, a blank in the prefix" "$flags" ;; esac
grep -q "^ExecStart=/opt/s.x20p'&x/bin/tandem serve " "$installed/lib/systemd/system/tandem.service" && ok "the unit, a blank in the prefix" ||
	not_ok "the unit, a blank in the prefix" "$(grep ExecStart "$installed/lib/systemd/system/tandem.service")"
check "make uninstall, a blank in the prefix" install uninstall
equal "uninstall, a blank in the prefix" "rest" "$(cd "$root" && find . -type f ! -path ".*/tandem-bicycle.1" | sort | tr '\n' ' ')" "./opt/s ./opt/tandem/lib/libother.a "
finish
