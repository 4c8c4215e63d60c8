#!/usr/bin/env bash
# `tandem serve` from outside: HTTP by raw sockets, every field and answer, load, failures, and the OpenAI client library.
set -u
. "$(dirname "$0")/venv.inc"
packages "openai<4"
exec "$python" tests/serve/run.py "$@"
