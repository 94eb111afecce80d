#!/usr/bin/env bash
# Asks many questions at once, and writes the answers into one report.
#
#   examples/report.sh QUESTIONS.jsonl REPORT.md
#
# Each line of the first file is a task, such as {"prompt": "What is a lease?", "priority": 5}; examples/questions.jsonl has three. The same file again gets the same
# answers, without new tasks. Exit status: that of `task submit --wait`; the report has the answers that there are.
set -euo pipefail
[ $# = 2 ] || { sed -n '4p' "$0" >&2; exit 2; }
bloom="${BLOOM_RUNTIME:-bloom-runtime}" questions="$1" report="$2" status=0
answers="$(mktemp -d)"
trap 'rm -rf "$answers"' EXIT

"$bloom" task submit --from "$questions" --label job=report --wait --wait-timeout 2h --out "$answers" >"$answers/paths" || status=$?
{
  echo "# Report of $(date -u +%F)"
  # In the order of the questions.
  while IFS= read -r path; do
    id="$(basename "${path%.*}")"
    printf '\n## %s\n\n' "$("$bloom" task get "$id" -o 'jsonpath=$.prompt' | head -n 1)"
    cat "$path"
    echo
  done <"$answers/paths"
} >"$report"
echo "$(wc -l <"$answers/paths") answers are in $report" >&2
exit "$status"
