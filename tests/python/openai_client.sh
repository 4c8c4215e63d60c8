#!/usr/bin/env bash
# The openai package as programs use it, against a running `tandem serve`.
. "$(dirname "$0")/venv.inc"
packages "openai<4"
exec "$python" tests/serve/run.py openai_client
