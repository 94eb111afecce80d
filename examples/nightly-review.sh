#!/usr/bin/env bash
# Reviews what was committed to a project since yesterday, and prints the review: a line for cron, which mails it.
#
#   examples/nightly-review.sh PROJECT
#   7 3 * * *  BLOOM_SERVER=https://bloom.example BLOOM_KEY_FILE=$HOME/alice.key examples/nightly-review.sh site
#
# However often it runs on a day, there is one task; a run that takes two hours or five dollars is ended. Exit status: that of `task wait`.
set -euo pipefail
[ $# = 1 ] || { sed -n '4p' "$0" >&2; exit 2; }
bloom="${BLOOM_RUNTIME:-bloom-runtime}" project="$1" day="$(date -u +%F)"

# A conversation of its own for each night, and never two reviews of one project at a time.
id="$("$bloom" task submit --project "$project" --context "review-$project-$day" --exclusive-key "review-$project" \
  --idempotency-key "review-$project-$day" --label job=nightly-review --timeout 2h --budget 5 --max-attempts 2 -o name \
  "Look at the commits of the last day (git log --since=yesterday). Review them for mistakes: name file and line, say what goes wrong, and how to mend it.
Change nothing. If there is nothing to say, answer with one line." </dev/null)"
"$bloom" task wait "$id" --wait-timeout 6h >/dev/null || { status=$?; "$bloom" task describe "$id" >&2; exit "$status"; }
"$bloom" task result "$id"
