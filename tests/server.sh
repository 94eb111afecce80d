# For scripts that start programs beside the server: a directory, the programs' ends, and their addresses. To be sourced.
dir="$(mktemp -d)"
pids=()
end() {
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$dir"
}
trap end EXIT

address() { # FILE: waits for the first loopback address in it
  for _ in $(seq 300); do
    grep -om1 'http://127\.0\.0\.1:[0-9]*' "$1" && return
    sleep 0.1
  done
  echo "no server came up:" >&2
  cat "$dir"/*.log >&2
  return 1
}

start_server() { # SETTING=VALUE...: a server without limits of rate, which takes all time limits of the schema, on a database of its own; sets url
  env -i PATH="$PATH" HOME="$dir" DATA_DIR="$dir/data" PORT=0 LOG_LEVEL=warn \
    RATE_LIMIT_PER_MINUTE=0 TEST_CONNECTION_PER_MINUTE=0 WORKER_RATE_LIMIT_PER_MINUTE=0 MAX_TIMEOUT_SECONDS=604800 "$@" \
    target/debug/bloom-runtime serve >"$dir/stdout" 2>"$dir/server.log" &
  pids+=($!)
  url="$(address "$dir/stdout")"
}
