// Runs a task by the generated types and openapi-fetch: create, claim, complete, read.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./openapi.js";

type Task = components["schemas"]["Task"];

const { BLOOM_SERVER: baseUrl, BLOOM_KEY: key } = process.env;
const client = createClient<paths>({ baseUrl, headers: { "X-Runtime-API-Key": key } });

const registered = await client.POST("/api/runtime/workers", {
  body: { name: "typescript", capabilities: { agents: ["typescript"], max_concurrency: 2 } },
});
assert.equal(registered.data?.capabilities.max_concurrency, 2);

const created = await client.POST("/api/runtime/llm-tasks", {
  body: { context_id: "typescript", agent_slug: "typescript", prompt: "Say hello", policy: { timeout_sec: 60 }, labels: { team: "web" } },
});
assert.ok(created.data, JSON.stringify(created.error));
const task: Task = created.data;
assert.equal(task.status, "queued");
assert.equal(task.policy.timeout_sec, 60);

const claimed = await client.POST("/api/runtime/workers/{id}/claim", { params: { path: { id: "typescript" } }, body: { max: 1 } });
const [mine] = claimed.data?.leases ?? [];
assert.ok(mine, "a lease");
assert.equal(mine.task.id, task.id);

const path = { id: task.id };
const completed = await client.POST("/api/runtime/llm-tasks/{id}/complete", {
  params: { path },
  body: { status: "success", output: "hello", metrics: { duration_ms: 5 }, lease_id: mine.lease.id },
});
assert.equal(completed.data?.task.status, "completed");
const result = await client.GET("/api/runtime/llm-tasks/{id}/result", { params: { path } });
assert.equal(result.data?.output, "hello");

const query = { status: "completed" as const, label: ["team=web"], limit: 5 };
const listed = await client.GET("/api/runtime/llm-tasks", { params: { query } });
assert.deepEqual(listed.data?.map((one) => one.id), [task.id]);

const missing = await client.GET("/api/runtime/llm-tasks/{id}", { params: { path: { id: "019c936e-3800-7000-8000-000000000001" } } });
const code: components["schemas"]["ErrorCode"] | undefined = missing.error?.code;
assert.equal(code, "not_found");
