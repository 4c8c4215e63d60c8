#!/usr/bin/env bash
# The page at / in a headless Chromium. The browser is large, so that it is not installed for this: what is there is used
# (on Debian: apt-get install chromium-headless-shell), or what TANDEM_BROWSER names. Looking at build/page/*.png is left to people.
. "$(dirname "$0")/venv.inc"
[ -n "${TANDEM_BROWSER:-}" ] || command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null || skip "no Chromium here, and TANDEM_BROWSER names none"
exec python3 tests/serve/run.py page
