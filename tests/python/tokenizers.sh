#!/usr/bin/env bash
# `tandem tokenize` against the Hugging Face library, id for id: random small tokenizers, the models in this repository, and every
# folder under $TANDEM_TOKENIZERS (real vocabularies, not in the repository) on mixed and adversarial text.
set -u
. "$(dirname "$0")/venv.inc"
packages "tokenizers<0.24"
passed=0 failed=0 skipped=0
try() {
	echo "--- $*"
	if "$python" tests/tokenizer/compare.py --tandem build/tandem "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
try --random 300 --mb 1 models/demo
if [ -n "${TANDEM_TOKENIZERS:-}" ] && [ -d "$TANDEM_TOKENIZERS" ]; then
	while read -r file; do try --mb "${TOKENIZER_MB:-10}" "$(dirname "$file")"; done < <(find "$TANDEM_TOKENIZERS" -name tokenizer.json | sort)
else
	skipped=1
	echo "skipped: TANDEM_TOKENIZERS names no folder: the real vocabularies are not compared"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
