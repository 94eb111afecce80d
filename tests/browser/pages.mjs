// The pages in a real Chromium, as a person uses them: axe-core finds nothing on any of them, in light, dark and at phone width, in English and in
// Ukrainian; the browser reports no error (what the policy of contents forbids, for example); keys and live updates work, a real agent runs what is submitted, and
// without scripts, forms do.
//
//   node pages.mjs BASE KEY [IMAGES]     IMAGES: a directory for screenshots
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.BROWSER_NODE}/node_modules/`);
const puppeteer = require("puppeteer-core");
const axe = require("axe-core");
const [base, key, images] = process.argv.slice(2);

const call = async (method, path, body) => {
  const answer = await fetch(`${base}/api/runtime/${path}`, {
    method, headers: { "content-type": "application/json", "x-runtime-api-key": key }, body: body && JSON.stringify(body),
  });
  assert(answer.ok, `${method} ${path}: ${answer.status} ${await answer.clone().text()}`);
  return answer.json();
};

// What the pages show.
const event = (seq, kind, data) => ({ seq, kind, at: Date.now(), data });
const newTask = (prompt, more = {}) => call("POST", "llm-tasks", { context_id: "repo-1", agent_slug: "writer", prompt, session: "none", ...more });
const run = async (task) => {
  const { lease } = await call("POST", `llm-tasks/${task.id}/lease`, { worker_id: "build-01", ttl_seconds: 3600 });
  await call("POST", `llm-tasks/${task.id}/heartbeat`, { lease_id: lease.id });
  await call("POST", `llm-tasks/${task.id}/events`, { lease_id: lease.id, events: [
    event(1, "lifecycle", { phase: "started", model: "claude-sonnet", profile: "default" }),
    event(2, "text", { text: "I will look at the changes first." }),
    event(3, "tool_use", { name: "Bash", input: { command: "git diff --stat v2.3..HEAD" } }),
    event(4, "tool_result", { content: " src/web/mod.rs | 45 +++++\n 1 file changed" }),
    event(5, "tool_use", { name: "Edit", input: { file: "src/web/mod.rs", edits: [{ line: 12, text: "mod markdown;" }, { line: 14, text: "mod json;" }] } }),
    event(6, "tool_result", { content: Array.from({ length: 60 }, (_, n) => `test case_${n} ... ok`).join("\n") }),
    event(7, "stderr", { text: "warning: a hook took 3 s" }),
  ] });
  return lease.id;
};
const end = (task, lease_id, how) =>
  call("POST", `llm-tasks/${task.id}/complete`, { lease_id, metrics: { duration_ms: 48211, tokens_used: 43004 }, ...how });

// It goes offline when it has not been heard of for a minute.
const registerBuilder = () => call("POST", "workers", { name: "build-01", agent_version: "0.1.0", os_info: "Debian 12", capabilities: { max_concurrency: 8 } });

const seed = async () => {
  await registerBuilder();
  const until = Date.now() + 900_000;
  const message = "its Claude account 'team-a' was refused: sign in again with claude login on the machine";
  const pauses = [{ kind: "account", name: "team-a", cause: "credentials", since: Date.now(), until, message }];
  await call("POST", "workers", { name: "build-02", os_info: "Alpine 3.20", capabilities: { max_concurrency: 2, agents: ["reviewer"] }, pauses });
  await call("POST", "workers", { name: "build-03", url: "http://127.0.0.1:1", capabilities: { max_concurrency: 1 } });
  const project = await call("POST", "projects", { name: "docs", repo_url: "https://git.example/team/docs.git", primary_node_id: "build-03" });
  const usage = { input_tokens: 41200, output_tokens: 1804, cost_usd: 0.1834 };
  const done = await newTask("Review the pull request 1842 and say what could break in production", { labels: { team: "docs" } });
  const output = JSON.stringify({ verdict: "changes needed", risks: ["The list is read twice for each page"] });
  await end(done, await run(done), { status: "success", output, usage, warnings: ["the MCP server tickets did not start; the run had none of its tools"] });
  const written = await newTask("Explain how the queue of an agent is closed, with an example", { session: "context" });
  const diff = "diff --git a/src/queue.rs b/src/queue.rs\nindex 1..2 100644\n--- a/src/queue.rs\n+++ b/src/queue.rs\n@@ -10,3 +10,4 @@ impl Queue {\n     fn close(&mut self) {\n-        self.open = false;\n+        // Who waits is told why.\n+        self.close_with(Reason::Paused);\n     }\n"
    + "diff --git a/docs/old.md b/docs/queues.md\nsimilarity index 100%\nrename from docs/old.md\nrename to docs/queues.md\ndiff --git a/docs/queue.png b/docs/queue.png\nnew file mode 100644\nBinary files /dev/null and b/docs/queue.png differ\n";
  const lease = await run(written);
  const stored = await fetch(`${base}/api/runtime/artifacts?task_id=${written.id}&lease_id=${lease}&name=changes.patch&type=GIT_DIFF`, {
    method: "POST", headers: { "content-type": "application/octet-stream", "x-runtime-api-key": key }, body: diff,
  });
  assert(stored.ok, await stored.text());
  const answer = "# How a queue is closed\n\nA queue is **closed** while it is paused or at its limit:\n\n| state | new leases | told as |\n|---|---|---|\n| paused | none | `paused` |\n| at its limit | none | `limit` |\n\n"
    + "1. Pause it:\n\n   ```sh\n   bloom-runtime queue pause writer --reason \"the repository moves to another server, so nobody may write to it until tomorrow\"\n   ```\n2. Wait until its runs have ended.\n\n> Runs that have begun go on.\n\nSee [the documentation](https://docs.example/queues) and ![the picture](https://docs.example/queue.png).";
  const branch = { branch: `bloom/${written.id}-${crypto.randomUUID()}`, commit: "0123456789abcdef".repeat(3).slice(0, 40) };
  await end(written, lease, { status: "success", output: answer, usage, ...branch });
  const failed = await newTask("Write release notes for 2.4 from the commits since v2.3");
  await end(failed, await run(failed), { status: "error", error_message: "401 OAuth token has expired", reason: "auth", usage });
  const asking = await newTask("Find the flaky tests in tests/it and propose a fix for each of them");
  const question = { tool: "Bash", input: { command: 'psql -c "DROP TABLE sessions_old"' }, limit_sec: 3600 };
  await call("POST", `llm-tasks/${asking.id}/question`, { lease_id: await run(asking), id: crypto.randomUUID(), question });
  const choosing = await newTask("Move the changelog to the new format");
  const questions = [
    { question: "Which format shall the changelog have?", options: [{ label: "Keep a Changelog", description: "sections by kind" }, { label: "One list", description: "as it is now" }] },
    { question: "From which version on?" },
    { question: "Which parts shall it have?", options: [{ label: "Added", description: "" }, { label: "Fixed", description: "" }, { label: "Removed", description: "" }], multiSelect: true },
  ];
  const inWords = { tool: "AskUserQuestion", input: { questions }, questions: questions.map(({ question }) => question), limit_sec: 3600 };
  await call("POST", `llm-tasks/${choosing.id}/question`, { lease_id: await run(choosing), id: crypto.randomUUID(), question: inWords });
  const running = await newTask("Translate docs/faq.md; keep the headings");
  await run(running);
  for (const prompt of ["Check that each link in docs/ leads somewhere", "Summarize the incident of last night in five sentences"]) {
    await newTask(prompt, { agent_slug: "reviewer" });
  }
  await newTask("Clean up the old branches", { suspend: true });
  await call("POST", "queues/reviewer/limit", { max_concurrency: 2 });
  await call("POST", "keys", { name: "ci", scope: "submit", team: "docs", expires_in_sec: 7_776_000, quota: { max_open_tasks: 100, max_stored_bytes: 1e9 } });
  return { written: written.id, done: done.id, failed: failed.id, asking: asking.id, choosing: choosing.id, running: running.id, project: project.id };
};

const tasks = await seed();
const pages = {
  overview: "/", tasks: "/tasks", "tasks-filtered": "/tasks?status=dead", task: `/tasks/${tasks.done}`, "task-written": `/tasks/${tasks.written}`, "task-failed": `/tasks/${tasks.failed}`,
  "task-asking": `/tasks/${tasks.asking}`, "task-choosing": `/tasks/${tasks.choosing}`, "task-running": `/tasks/${tasks.running}`, events: `/tasks/${tasks.done}/events`, "new-task": "/tasks/new",
  delete: `/tasks/${tasks.done}/confirm-delete`, workers: "/workers", worker: "/workers/build-01", leases: "/leases",
  contexts: "/contexts", context: "/contexts/repo-1", queues: "/queues", usage: "/usage?by=label:team&by=agent", keys: "/keys", key: "/keys/ci", projects: "/projects", project: `/projects/${tasks.project}`,
  artifacts: "/artifacts", audit: "/audit", reconcilers: "/reconcilers", membridge: "/membridge", error: "/nothing",
};
const looks = {
  light: ["light", 1280, 900, "en"], dark: ["dark", 1280, 900, "en"], phone: ["light", 390, 844, "en"],
  ukrainian: ["light", 1280, 900, "uk"], "ukrainian-phone": ["dark", 390, 844, "uk"],
};
// Of the pages in Ukrainian, a few pictures are enough.
const isPictured = (name, kind) => !kind.startsWith("ukrainian") || ["overview", "task-failed"].includes(name);

const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM, headless: true, args: ["--no-sandbox", "--disable-gpu"] });
const complaints = [];
const open = async (scripts = true) => {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  await page.setJavaScriptEnabled(scripts);
  page.on("console", (line) => {
    // The page of an error has its status.
    if (["error", "warn"].includes(line.type()) && !line.text().includes("404")) complaints.push(`${page.url()}: ${line.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error}`));
  page.on("request", (request) => { if (!request.url().startsWith(base)) complaints.push(`loads ${request.url()}`); });
  return page;
};
const signIn = async (page, own = key) => {
  await page.goto(`${base}/sign-in`);
  await page.type("#key", own);
  await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
  assert.equal(new URL(page.url()).pathname, "/");
};

try {
  const page = await open();
  const look = async (name, path, [scheme, width, height, language], kind) => {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }, { name: "prefers-reduced-motion", value: "reduce" }]);
    await page.setViewport({ width, height });
    await page.setExtraHTTPHeaders({ "accept-language": language });
    await page.goto(base + path);
    assert.equal(await page.evaluate(() => document.documentElement.lang), language);
    await page.evaluate(axe.source);
    const { violations } = await page.evaluate(() => axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }));
    const found = violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).slice(0, 3).join(" ")}`);
    complaints.push(...found.map((text) => `${name} in ${kind}: ${text}`));
    const sideways = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (sideways > 0) complaints.push(`${name} in ${kind} is ${sideways} px wider than the window`);
    if (images && isPictured(name, kind)) await page.screenshot({ path: `${images}/${name}-${kind}.png` });
  };
  for (const [kind, how] of Object.entries(looks)) await look("sign-in", "/sign-in", how, kind);
  await signIn(page);
  for (const [name, path] of Object.entries(pages)) for (const [kind, how] of Object.entries(looks)) await look(name, path, how, kind);

  // Scripts speak the language of the page.
  await page.goto(base);
  assert.equal(await page.$eval("#live", (button) => button.textContent), "Наживо");
  await page.keyboard.press("p");
  assert.equal(await page.$eval("#live", (button) => button.textContent), "Зупинено");
  await page.goto(`${base}/workers`);
  await page.waitForFunction(() => [...document.querySelectorAll("time")].every((time) => /тому|щойно/.test(time.textContent)));
  await page.setExtraHTTPHeaders({ "accept-language": "en" });

  // Keys.
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(base);
  await page.keyboard.press("g");
  await Promise.all([page.waitForNavigation(), page.keyboard.press("t")]);
  assert.equal(page.url(), `${base}/tasks`);
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => Boolean(document.activeElement.closest("[role=search]"))), true);
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("?");
  assert.equal(await page.evaluate(() => document.getElementById("help").open), true);
  await page.keyboard.press("Escape");

  // The pages below "More", by keys.
  const isMoreOpen = () => page.$eval("#more", (more) => more.open);
  await page.focus("#more summary");
  await page.keyboard.press("Enter");
  assert.equal(await isMoreOpen(), true);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Leases");
  await page.keyboard.press("Escape");
  assert.equal(await isMoreOpen(), false);
  await page.keyboard.press("Enter");
  assert.equal(await isMoreOpen(), true);
  await page.click("h1");
  assert.equal(await isMoreOpen(), false);

  // The menu takes no more than a row beside the rest, at whatever width.
  for (const language of ["en", "uk"]) {
    await page.setExtraHTTPHeaders({ "accept-language": language });
    await page.goto(base);
    for (const width of [800, 900, 1000, 1099, 1100, 1280]) {
      await page.setViewport({ width, height: 900 });
      const height = await page.$eval(".top", (top) => top.clientHeight);
      assert(height < 90, `the head is ${height} px high at ${width} px in ${language}`);
    }
  }
  await page.setExtraHTTPHeaders({ "accept-language": "en" });
  await page.goto(base);

  // A change on the server appears by itself.
  await newTask("Appears without loading the page again");
  await page.waitForFunction(() => document.body.textContent.includes("Appears without loading the page again"), { timeout: 30_000 });

  // What is unfolded stays so while the page is loaded again, and a reply leads to its task.
  await page.goto(`${base}/tasks/${tasks.written}`);
  await page.click(".events li summary");
  await newTask("A change that lets open pages load again");
  await page.waitForResponse((response) => response.request().headers()["bloom-again"] && response.ok(), { timeout: 30_000 });
  assert.equal(await page.$eval(".events li details", (details) => details.open), true);
  await page.type("#reply", "And how is it opened again?");
  await Promise.all([page.waitForNavigation(), page.click(".reply button")]);
  assert.match(await page.$eval("h1", (title) => title.textContent), /And how is it opened again\?/);

  // The events of a running task stay at their end, unless somebody has scrolled up.
  const follows = await newTask("Say a lot");
  await registerBuilder();
  const following = await run(follows);
  const say = (seq) => call("POST", `llm-tasks/${follows.id}/events`, { lease_id: following, events: Array.from({ length: 10 }, (_, n) => event(seq + n, "text", { text: `line ${seq + n}\nof two` })) });
  for (const seq of [8, 18]) await say(seq);
  await page.goto(`${base}/tasks/${follows.id}`);
  const left = () => page.$eval(".events", (box) => box.scrollHeight - box.clientHeight - box.scrollTop);
  const showsLine = (number) => page.waitForFunction((text) => document.querySelector(".events").textContent.includes(text), { timeout: 30_000 }, `line ${number}\n`);
  assert(await left() < 2);
  // The focus in the box changes nothing.
  await page.focus(".events");
  await say(28);
  await showsLine(37);
  assert(await left() < 2);
  await page.$eval(".events", (box) => { box.scrollTop = 0; });
  await say(38);
  await showsLine(47);
  assert(await left() > 100);

  // The page says when it is offline, and that the session has ended. What is typed stays in the tab.
  const quiet = await (await browser.createBrowserContext()).newPage();
  const newKey = async () => (await call("POST", "keys", { name: "ends", scope: "submit", team: "docs", expires_in_sec: 86_400 })).key;
  await signIn(quiet, await newKey());
  const tellsLive = (text) => quiet.waitForFunction((text) => document.getElementById("live").textContent.startsWith(text), { timeout: 30_000 }, text);
  let isDown = true;
  await quiet.setRequestInterception(true);
  quiet.on("request", (request) => isDown && request.url() === `${base}/live` ? request.abort() : request.continue());
  await quiet.goto(`${base}/tasks`);
  await tellsLive("Offline: last update");
  isDown = false;
  await tellsLive("Live");
  await quiet.goto(`${base}/tasks/new`);
  await quiet.type("#prompt", "A long prompt");
  await quiet.goto(`${base}/tasks`);
  await tellsLive("Live");
  await call("DELETE", "keys/ends");
  await quiet.waitForSelector("#signed-out", { timeout: 30_000 });
  await Promise.all([quiet.waitForNavigation(), quiet.click("#signed-out")]);
  const renewed = await newKey();
  await quiet.type("#key", renewed);
  await Promise.all([quiet.waitForNavigation(), quiet.keyboard.press("Enter")]);
  assert.equal(quiet.url(), `${base}/tasks`);
  await quiet.goto(`${base}/tasks/new`);
  assert.equal(await quiet.$eval("#prompt", (prompt) => prompt.value), "A long prompt");
  await quiet.deleteCookie(...await quiet.cookies());
  await Promise.all([quiet.waitForNavigation(), quiet.click("form.fields button.main")]);
  assert.equal(await quiet.$eval("#kept", (told) => told.hidden), false);
  await Promise.all([quiet.waitForNavigation(), quiet.click("a[href*='/sign-in?next=']")]);
  await quiet.type("#key", renewed);
  await Promise.all([quiet.waitForNavigation(), quiet.keyboard.press("Enter")]);
  assert.equal(await quiet.$eval("#prompt", (prompt) => prompt.value), "A long prompt");
  await quiet.click("form.fields summary");
  await quiet.type("#context_id", "kept");
  await Promise.all([quiet.waitForNavigation(), quiet.click("form.fields button.main")]);
  assert.match(quiet.url(), /done=created$/);
  await quiet.goto(`${base}/tasks/new`);
  assert.equal(await quiet.$eval("#prompt", (prompt) => prompt.value), "");
  // Another person who signs in at this tab does not see it.
  await quiet.type("#prompt", "Only mine");
  await quiet.deleteCookie(...await quiet.cookies());
  await signIn(quiet);
  await quiet.goto(`${base}/tasks/new`);
  assert.equal(await quiet.$eval("#prompt", (prompt) => prompt.value), "");
  assert.equal(await quiet.evaluate(() => Object.keys(sessionStorage).filter((key) => key.startsWith("draft:")).length), 0);

  // A question is answered with the mouse. The title tells of it.
  await page.goto(`${base}/tasks/${tasks.asking}`);
  assert.match(await page.title(), /^Asks you: /);
  await Promise.all([page.waitForNavigation(), page.click("button[value=allow]")]);
  assert.match(await page.$eval(".done", (told) => told.textContent), /Your answer was stored/);

  // Options of a question are chosen with a click.
  await page.goto(`${base}/tasks/${tasks.choosing}`);
  await page.click("[data-fill] li:nth-child(2) button");
  assert.equal(await page.$eval("#answer1", (answer) => answer.value), "One list");
  await page.type("#answer2", "2.0");
  // Of several, each click adds one or takes it away again.
  for (const place of [1, 3, 2, 1]) await page.click(`[data-several] li:nth-child(${place}) button`);
  assert.equal(await page.$eval("#answer3", (answer) => answer.value), "Fixed, Removed");
  await Promise.all([page.waitForNavigation(), page.click("button[value=allow]")]);
  assert.match(await page.$eval(".done", (told) => told.textContent), /Your answer was stored/);

  // A real agent runs what the form submits, and the page of the task shows the end by itself.
  const submit = async (agent, prompt) => {
    await page.goto(`${base}/tasks/new`);
    await page.click("form.fields summary");
    for (const [field, text] of Object.entries({ prompt, agent_slug: agent, context_id: `real-${agent}` })) {
      await page.$eval(`#${field}`, (input) => { input.value = ""; });
      await page.type(`#${field}`, text);
    }
    await Promise.all([page.waitForNavigation(), page.click("form.fields button.main")]);
  };
  const shows = (text) => page.waitForFunction((text) => document.querySelector("main").textContent.includes(text), { timeout: 30_000 }, text);
  await submit("shout", "said by a real agent");
  await shows("SAID BY A REAL AGENT");
  assert.equal(await page.$eval(".badge", (badge) => badge.textContent), "completed");
  // Its run is ended from the page.
  await submit("sleeper", "sleep");
  await page.waitForFunction(() => document.querySelector(".badge").textContent === "running", { timeout: 30_000 });
  await Promise.all([page.waitForNavigation(), page.click("form[action$='/cancel'] button")]);
  await page.waitForFunction(() => document.querySelector(".badge").textContent === "cancelled", { timeout: 30_000 });

  // The buttons for many tasks, with scripts, too.
  await page.goto(`${base}/tasks?status=queued`);
  await page.click("input[name=ids]");
  await Promise.all([page.waitForNavigation(), page.click("button[value=cancel]")]);
  assert.match(await page.$eval("h1", (title) => title.textContent), /Cancel 1 task\?/);

  // Without scripts: sign in, submit, cancel in bulk, sign out.
  const plain = await open(false);
  await signIn(plain);
  await Promise.all([plain.waitForNavigation(), plain.click("footer a[hreflang=uk]")]);
  assert.equal(await plain.$eval("h1", (title) => title.textContent), "Огляд");
  await Promise.all([plain.waitForNavigation(), plain.click("footer a[hreflang=en]")]);
  await plain.click("#more summary");
  await Promise.all([plain.waitForNavigation(), plain.click("#more a[href='/audit']")]);
  assert.equal(await plain.$eval("#more a[aria-current]", (entry) => entry.textContent), "Audit");
  await plain.goto(`${base}/tasks/new`);
  await plain.type("#prompt", "Sent without scripts");
  await plain.click("form.fields summary");
  await plain.type("#context_id", "plain");
  await Promise.all([plain.waitForNavigation(), plain.click("form.fields button.main")]);
  assert.match(plain.url(), /\/tasks\/[0-9a-f-]{36}\?done=created$/);
  await plain.goto(`${base}/tasks?context_id=plain`);
  await plain.click("input[name=ids]");
  await Promise.all([plain.waitForNavigation(), plain.click("button[value=cancel]")]);
  assert.match(await plain.$eval("h1", (title) => title.textContent), /Cancel 1 task\?/);
  await Promise.all([plain.waitForNavigation(), plain.click("main button.main")]);
  assert.match(await plain.$eval("main", (main) => main.textContent), /cancelled/);
  await Promise.all([plain.waitForNavigation(), plain.click(".who form button")]);
  assert.equal(new URL(plain.url()).pathname, "/sign-in");

  assert.deepEqual(complaints, []);
  console.log(`${Object.keys(pages).length + 1} pages in ${Object.keys(looks).length} looks: nothing to complain about`);
} finally {
  await browser.close();
}
