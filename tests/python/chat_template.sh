#!/usr/bin/env bash
# Chat templates against jinja2 in the set-up of Hugging Face: every family of tests/template/families on random conversations, random
# programs in the template language, and every template under $TANDEM_TOKENIZERS and $TANDEM_TEMPLATES (real ones, not in the
# repository).
set -u
. "$(dirname "$0")/venv.inc"
packages jinja2==3.1.6
real=()
for folder in "${TANDEM_TOKENIZERS:-}" "${TANDEM_TEMPLATES:-}"; do
	[ -n "$folder" ] || continue
	while read -r file; do real+=("$file"); done < <(find "$folder" -name tokenizer_config.json -o -name '*.jinja' | sort)
done
"$python" tests/template/compare.py --conversations "${CONVERSATIONS:-200}" --snippets "${SNIPPETS:-20000}" ${real[@]+"${real[@]}"} >build/chat_template.out
code=$?
cat build/chat_template.out
passed=$(grep -c ' 0 different$' build/chat_template.out)
failed=$(grep ' different$' build/chat_template.out | grep -vc ' 0 different$')
[ $code -ne 0 ] && [ "$failed" -eq 0 ] && failed=1
skipped=0
if [ ${#real[@]} -eq 0 ]; then
	skipped=1
	echo "skipped: neither TANDEM_TOKENIZERS nor TANDEM_TEMPLATES names a folder: no real templates are compared"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
