# Sourced: a private Python environment in build/venv with the packages that the named suite needs. Sets $python. A machine without
# network or python3-venv cannot have it: then the suite is skipped, and says so.
cd "$(dirname "$0")/../.." || exit 2
venv=build/venv
python=$venv/bin/python3
packages() { # PIP ARGUMENT...: installs unless a stamp says it was done
	local stamp=$venv/.installed-$(echo "$*" | cksum | cut -d' ' -f1)
	[ -f "$stamp" ] && return 0
	[ -x "$python" ] || python3 -m venv "$venv" || skip "no python3 with venv"
	"$python" -m pip install --quiet --disable-pip-version-check "$@" || skip "pip could not install $*"
	touch "$stamp"
}
skip() {
	echo "skipped: $1"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
}
