#!/usr/bin/env bash
# A server with keys, and three workers, on this machine: a rehearsal for docs/three-machines.md. Ctrl-C ends all of it; DIR keeps what was stored.
#
#   examples/fleet.sh DIR [RUNNER]      RUNNER: what runs tasks, claude (the default), echo, or a profile of BLOOM_PROFILES
#
# BLOOM_RUNTIME names the program, if it is not in the PATH; PORT is that of the server (5000).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '4p' "$0" >&2; exit 2; }
bloom="${BLOOM_RUNTIME:-bloom-runtime}" runner="${2:-claude}"
mkdir -p "$1"
cd "$1"
umask 077

pids=()
end() {
  trap - EXIT INT TERM
  # The agents first: they hand back what they have not finished.
  [ ${#pids[@]} = 0 ] || for pid in "${pids[@]:1}" "${pids[0]}"; do kill -TERM "$pid" 2>/dev/null && wait "$pid" || true; done
}
trap end EXIT
trap 'exit 130' INT TERM

# The administrator's key. It stays on the machine of the server.
[ -s admin.key ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >admin.key
# What an earlier server has said is not the address of this one.
rm -f server.out
RUNTIME_API_KEY_FILE=admin.key DATA_DIR=data "$bloom" serve >server.out 2>server.log &
pids+=($!)
for _ in $(seq 300); do
  url="$(grep -som1 'http://127\.0\.0\.1:[0-9]*' server.out)" && break
  kill -0 "${pids[0]}" 2>/dev/null || { cat server.log >&2; exit 1; }
  sleep 0.1
done
export BLOOM_SERVER="$url"

for name in one two three; do
  # A join token enrolls one worker, once. The agent exchanges it for a key of its own, which it keeps in its directory and takes from there when it starts again.
  if [ ! -e "$name.token" ]; then
    "$bloom" key create "join-$name" --scope join --worker "$name" --expires 1h --key-file admin.key --out "$name.token" >/dev/null 2>&1
  fi
  "$bloom" agent --name "$name" --work-dir "$name" --runner "$runner" --max-concurrency 2 --join-token-file "$name.token" >"$name.log" 2>&1 &
  pids+=($!)
done
# For a person: it creates tasks, and sees what its team has created.
[ -e me.key ] || "$bloom" key create me --scope member --team fleet --key-file admin.key --out me.key >/dev/null 2>&1
for name in one two three; do
  for _ in $(seq 300); do
    "$bloom" worker get "$name" --key-file admin.key -o name >/dev/null 2>&1 && break
    sleep 0.1
  done
done

cat <<END
The server is at $url, with the workers one, two and three. In another terminal:

  export BLOOM_SERVER=$url BLOOM_KEY_FILE=$PWD/me.key
  $bloom task submit --wait "Say hello"

Its web page asks for the key in $PWD/me.key. Ctrl-C ends the fleet.
END
wait -n || true
echo "one of the programs has ended; the logs are in $PWD" >&2
exit 1
