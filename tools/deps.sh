#!/bin/sh
# Makes sure that what the build and the tests need is installed. With root or sudo it installs by apt what is missing; else it says
# exactly what to install and fails. Usage: tools/deps.sh build|test
set -u
want=${1:-build}
build="gcc make pkg-config libjansson-dev libpcre2-dev libutf8proc-dev libhwloc-dev libmd-dev libmicrohttpd-dev"
test="$build g++ hipcc libcmocka-dev spin python3 python3-venv perl procps libdnnl-dev"
[ "$want" = test ] && packages=$test || packages=$build

present() { # is it there, from whatever package?
	case $1 in
	gcc) command -v "${CC:-cc}" >/dev/null ;;
	g++) command -v c++ >/dev/null || command -v g++ >/dev/null ;;
	make | pkg-config | spin | perl | hipcc) command -v "$1" >/dev/null ;;
	libdnnl-dev) { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -qE 'libdnnl\.so\.[23] ' ;;
	procps) command -v pgrep >/dev/null ;;
	python3) command -v python3 >/dev/null ;;
	python3-venv) python3 -c 'import venv, ensurepip' 2>/dev/null ;;
	libjansson-dev) pkg-config --exists jansson 2>/dev/null ;;
	libpcre2-dev) pkg-config --exists libpcre2-8 2>/dev/null ;;
	libutf8proc-dev) pkg-config --exists libutf8proc 2>/dev/null ;;
	libhwloc-dev) pkg-config --exists hwloc 2>/dev/null ;;
	libmd-dev) pkg-config --exists libmd 2>/dev/null ;;
	libmicrohttpd-dev) pkg-config --exists libmicrohttpd 2>/dev/null ;;
	libcmocka-dev) echo '#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>' | "${CC:-cc}" -E - >/dev/null 2>&1 ;;
	esac
}

missing=
for p in $packages; do present "$p" || missing="$missing $p"; done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ]; then sudo=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo=sudo
else sudo=none; fi
if [ "$sudo" = none ] || ! command -v apt-get >/dev/null; then
	echo "tandem: packages are missing:$missing" >&2
	echo "tandem: install them and run make again; on Debian or Ubuntu: sudo apt-get install$missing" >&2
	exit 2
fi
echo "tandem: installing$missing"
$sudo apt-get update -qq || true
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
	echo "tandem: apt-get could not install$missing; see its message above" >&2
	exit 2
}
