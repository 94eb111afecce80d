#!/usr/bin/env python3
"""A client without dependencies: creates a task, waits for it, prints the answer.

    BLOOM_SERVER=http://127.0.0.1:5000 BLOOM_KEY=... examples/client.py "Say hello" [IDEMPOTENCY_KEY]

With an idempotency key, the call can be repeated, also after a crash: there is one task, and each call waits for it. A client that is generated from
/openapi.json knows all calls and fields: docs/api-by-curl.md.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

SERVER = os.environ.get("BLOOM_SERVER", "http://127.0.0.1:5000")
KEY = os.environ.get("BLOOM_KEY")
FINAL = {"completed", "failed", "dead", "cancelled"}


def call(method, path, body=None, headers=None):
    """The answer, as JSON. Errors of the request are raised; what may pass is tried again for five minutes."""
    headers = {"Content-Type": "application/json", **({"X-Runtime-API-Key": KEY} if KEY else {}), **(headers or {})}
    data = None if body is None else json.dumps(body).encode()
    until = time.monotonic() + 300
    while True:
        wait = 1
        try:
            request = urllib.request.Request(f"{SERVER}/api/runtime/{path}", data, headers, method=method)
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429, 502, 503) or time.monotonic() > until:
                raise SystemExit(f"{method} {path}: {error.code} {error.read().decode()}") from None
            wait = int(error.headers.get("Retry-After", 1))
        except OSError as error:
            if time.monotonic() > until:
                raise SystemExit(f"{SERVER}: {error}") from None
        time.sleep(wait)


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    prompt, key = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else str(uuid.uuid4())
    new = {"prompt": prompt, "agent_slug": "default", "context_id": f"client-{key}", "labels": {"from": "client.py"}}
    task = call("POST", "llm-tasks", new, {"Idempotency-Key": key})
    print(f"task {task['id']}", file=sys.stderr)
    while task["status"] not in FINAL:
        # The server answers when the task has ended, or after this time.
        task = call("GET", f"llm-tasks/{task['id']}/wait?timeout_sec=30")
    if task["status"] != "completed":
        raise SystemExit(f"the task is {task['status']}: {(task.get('failure') or {}).get('message', 'no reason was given')}")
    print(call("GET", f"llm-tasks/{task['id']}/result")["output"])


if __name__ == "__main__":
    main()
