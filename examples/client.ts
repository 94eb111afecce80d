// A client without dependencies: creates a task, waits for it, prints the answer. For Node 22.18 or later; docs/api-by-curl.md says how a client for all calls is generated.
//
//   BLOOM_SERVER=http://127.0.0.1:5000 BLOOM_KEY=... node examples/client.ts "Say hello" [IDEMPOTENCY_KEY]
//
// With an idempotency key, the call can be repeated, also after a crash: there is one task, and each call waits for it.

const { BLOOM_SERVER: server = "http://127.0.0.1:5000", BLOOM_KEY: apiKey } = process.env;
const FINAL = ["completed", "failed", "dead", "cancelled"];

type Task = { id: string; status: string; failure: { reason: string; message: string } | null };

/** The answer, as JSON. Errors of the request are thrown; what may pass is tried again for five minutes. */
async function call<Answer>(method: string, path: string, body?: unknown, more: Record<string, string> = {}): Promise<Answer> {
  const headers = { "content-type": "application/json", ...(apiKey ? { "x-runtime-api-key": apiKey } : {}), ...more };
  const until = Date.now() + 300_000;
  for (;;) {
    let wait = 1;
    try {
      const signal = AbortSignal.timeout(90_000);
      const answer = await fetch(`${server}/api/runtime/${path}`, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
      if (answer.ok) return (await answer.json()) as Answer;
      const text = await answer.text();
      if (![408, 429, 502, 503].includes(answer.status) || Date.now() > until) throw new RangeError(`${method} ${path}: ${answer.status} ${text}`);
      wait = Number(answer.headers.get("retry-after") ?? 1);
    } catch (error) {
      if (error instanceof RangeError || Date.now() > until) throw error;
    }
    await new Promise((done) => setTimeout(done, wait * 1000));
  }
}

const [prompt, key = crypto.randomUUID()] = process.argv.slice(2);
if (!prompt) throw new RangeError('usage: client.ts "PROMPT" [IDEMPOTENCY_KEY]');
const asked = { prompt, agent_slug: "default", context_id: `client-${key}`, labels: { from: "client.ts" } };
let task = await call<Task>("POST", "llm-tasks", asked, { "idempotency-key": key });
console.error(`task ${task.id}`);
// The server answers when the task has ended, or after this time.
while (!FINAL.includes(task.status)) task = await call<Task>("GET", `llm-tasks/${task.id}/wait?timeout_sec=30`);
if (task.status !== "completed") throw new RangeError(`the task is ${task.status}: ${task.failure?.message ?? "no reason was given"}`);
console.log((await call<{ output: string }>("GET", `llm-tasks/${task.id}/result`)).output);

export {};
