"""What the fuzzer can't know: which tasks and workers there are, and that nothing may leave this machine or wait for long.

Only values that are valid already are exchanged for valid ones, so what a request is to show (accepted or refused) stays the same.
"""

import itertools
import json
import os
import re
import threading
import urllib.error
import urllib.request
import uuid

import schemathesis

SERVER = os.environ["FUZZ_SERVER"]
CONTROL_PLANE = os.environ["FUZZ_CONTROL_PLANE"]
HEADERS = {"X-Runtime-API-Key": "fuzz", "Content-Type": "application/json"}
WORKER = "fuzz-worker"

turn = itertools.count()
uses = itertools.count()
lock = threading.Lock()
tasks = []
# As the description has it.
PROJECT = re.compile(r"(?!\.)[A-Za-z0-9 ._-]{1,256}")
REF = re.compile(r"[^- ~^:?*\[\\/.][^ ~^:?*\[\\]*", re.DOTALL)


# Query parameters whose value is ignored, or matches nothing, if it does not fit. An empty one counts as absent everywhere.
LENIENT = {"limit", "after", "timeout_sec", "status", "task_id"}
# The other filters of tasks, which are not combined with a part of an id.
FILTERS = {"search", "status", "agent_slug", "context_id", "worker_id", "project", "owner", "team", "reason", "depends_on", "ids", "label", "created_after", "created_before", "finished_after", "asks"}
# No worker has the name of another actor of the audit trail.
ACTORS = ["admin", "api", "router", "reconciler"]
EMPTY = {"type": "string", "maxLength": 0}


@schemathesis.hook
def before_load_schema(context, document):
    """The document says what clients should send. What the server accepts beyond that must not be taken for a fault."""
    for path, item in document["paths"].items():
        # The audit trail and the leases refuse what is no id.
        lenient = LENIENT - {"task_id"} if path.endswith(("/audit", "/leases")) else LENIENT
        for call in item.values():
            for parameter in call.get("parameters", []):
                if parameter["in"] == "query" and not parameter.get("required"):
                    taken = {"type": "string"} if parameter["name"] in lenient else {"anyOf": [parameter["schema"], EMPTY]}
                    parameter["schema"] = taken
    schemas = document["components"]["schemas"]
    # At least one field of a filter is given and not empty, which generators of clients can't express.
    given = [{"required": [name], "properties": {name: {"minLength": 1}}} for name in ("status", "agent_slug", "context_id", "worker_id", "project", "owner", "team")]
    given += [{"required": [name], "properties": {name: {"type": "integer"}}} for name in ("created_after", "created_before", "finished_after")]
    given += [{"required": ["labels"], "properties": {"labels": {"type": "object", "minProperties": 1}}}]
    given += [{"required": ["label"], "properties": {"label": {"type": "array", "minItems": 1}}}]
    given += [{"required": ["reason"], "properties": {"reason": {"type": "string"}}}]
    given += [{"required": ["depends_on"], "properties": {"depends_on": {"type": "string"}}}]
    given += [{"required": ["asks"], "properties": {"asks": {"const": True}}}]
    for one in given[:7]:
        next(iter(one["properties"].values()))["type"] = "string"
    schemas["Filter"] = {"allOf": [schemas["Filter"], {"anyOf": given}]}
    # A quota has at least one limit.
    limits = [{"required": [name], "properties": {name: {"type": "integer"}}} for name in schemas["NewQuota"]["properties"]]
    schemas["NewQuota"] = {"allOf": [schemas["NewQuota"], {"anyOf": limits}]}
    # So has a change of a policy.
    schemas["PolicyChange"] = {"allOf": [schemas["PolicyChange"], {"anyOf": [
        {"required": ["timeout_sec"], "properties": {"timeout_sec": {"type": "integer"}}},
        {"required": ["budget"], "properties": {"budget": {"type": "number"}}},
    ]}]}
    # Which fields of a key go together depends on its scope.
    enrolled = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 56, "not": {"enum": ACTORS}}
    none = {"type": "null"}
    others = {"team": none, "quota": none}
    people = {"worker": none, "push": {"enum": [False, None]}, "namespaces": none}
    join = {"worker": {"anyOf": [none, enrolled]}, "expires_in_sec": {"maximum": 30 * 86_400}}
    of_scope = [
        {"properties": {"scope": {"const": "submit"}, **people}},
        {"required": ["team"], "properties": {"scope": {"const": "member"}, "team": {"type": "string"}, **people}},
        {"properties": {"scope": {"enum": ["admin", "read"]}, **people, **others}},
        {"required": ["worker"], "properties": {"scope": {"const": "worker"}, "worker": {"type": "string"}, **others}},
        {"properties": {"scope": {"const": "join"}, **join, **others}},
    ]
    schemas["NewKey"] = {"allOf": [schemas["NewKey"], {"anyOf": of_scope}]}
    # An invalid entry of many completions does not make the whole call invalid: its own result says what is wrong.
    schemas["WorkerCompletion"] = {"anyOf": [schemas["WorkerCompletion"], {"type": "object"}]}


def post(path, body):
    request = urllib.request.Request(f"{SERVER}/api/runtime/{path}", json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def known_task():
    """One of a few tasks, a new one every now and then: they are completed and cancelled as the fuzzer goes."""
    with lock:
        at = next(uses)
        if at % 20 == 0:
            post("workers", {"name": WORKER, "url": CONTROL_PLANE, "capabilities": {"max_concurrency": 32}})
            tasks.append(post("llm-tasks", {"context_id": "fuzz", "agent_slug": "fuzz", "prompt": "p"})["id"])
            del tasks[:-5]
        return tasks[at % len(tasks)]


def known_project():
    """A project that exists. The fuzzer may have deleted it, because the list of projects has its id."""
    with lock:
        try:
            post("projects", {"name": "fuzz", "repo_url": "https://git.example.com/fuzz.git"})
        except urllib.error.HTTPError as refused:
            if refused.code != 409:
                raise
        return "fuzz"


def give_name(body, field, most):
    """The patterns of git's names take more than git does."""
    name = body.get(field)
    if isinstance(name, str) and len(name) <= most and REF.fullmatch(name):
        body[field] = "main"


def give_project(task):
    """The contract refuses projects that do not exist, and what only tasks with a project have without one."""
    give_name(task, "ref", 255)
    ref, project = task.get("ref"), task.get("project")
    if isinstance(project, str) and 0 < len(project) <= 256 and "\0" not in project:
        task["project"] = known_project()
    elif project is None and (ref == "main" or task.get("push") == "branch"):
        task["project"] = known_project()


def is_made_up(text):
    """A valid id, but none that the server gave: those are of version 7."""
    try:
        return uuid.UUID(text).version != 7
    except (ValueError, AttributeError, TypeError):
        return False


def is_path(text, most):
    """A text that the pattern of a path takes; the contract refuses some of them."""
    return isinstance(text, str) and 0 < len(text) and len(text.encode(errors="replace")) <= most and not text.startswith("/")


def upload(case):
    """The fuzzer knows neither the digest of what it sends nor a lease."""
    query = dict(case.query or {})
    if is_path(query.get("name"), 1024):
        query["name"] = "fuzz/file"
    for name in ("sha256", "type", "task_id", "lease_id"):
        query.pop(name, None)
    case.query = query


def give_files(task):
    """Ids that the fuzzer makes up are no uploads, and its paths and globs may be none."""
    inputs, outputs = task.get("inputs"), task.get("outputs")
    if isinstance(inputs, list) and all(isinstance(one, dict) and is_made_up(one.get("artifact_id")) for one in inputs):
        task["inputs"] = []
    if isinstance(outputs, list) and len(outputs) <= 32 and all(is_path(one, 255) for one in outputs):
        task["outputs"] = ["out/*"] * len(outputs)


def give_few(capabilities):
    """The contract limits the combinations of namespaces, agents and projects, which no schema can say."""
    names = capabilities.get("projects")
    if isinstance(names, list) and len(names) <= 100 and all(isinstance(name, str) and PROJECT.fullmatch(name) for name in names):
        capabilities["projects"] = None


@schemathesis.hook
def before_call(context, case, **kwargs):
    id = (case.path_parameters or {}).get("id")
    if "/llm-tasks/{id}" in case.path and is_made_up(id) and next(turn) % 4:
        case.path_parameters["id"] = known_task()
    elif "/workers/{id}/" in case.path and isinstance(id, str) and id.isalnum() and next(turn) % 4:
        known_task()
        case.path_parameters["id"] = WORKER
    query = case.query or {}
    if str(query.get("timeout_sec", "")).isdigit() or case.path.endswith("/wait") and "timeout_sec" not in query:
        case.query = {**query, "timeout_sec": "0"}
    if case.path.endswith("/llm-tasks") and (case.query or {}).get("id"):
        case.query = {name: value for name, value in case.query.items() if name not in FILTERS}
    if case.path.endswith("/artifacts") and case.method == "POST":
        upload(case)
    body = case.body
    if not isinstance(body, dict):
        return
    if "/projects" in case.path:
        give_name(body, "branch_prefix", 100)
    wait = body.get("wait_sec")
    # JSON has one kind of number: 50.0 is a whole one, too.
    if case.path.endswith(("/claim", "/dispatch")) and type(wait) in (int, float) and 0 < wait <= 60 and wait == int(wait):
        body["wait_sec"] = 1
    if case.path.endswith("/workers") and isinstance(body.get("capabilities"), dict):
        give_few(body["capabilities"])
    agent = body.get("url")
    if case.path.endswith("/workers") and isinstance(agent, str) and 0 < len(agent) <= 2048 and "\0" not in agent:
        body["url"] = CONTROL_PLANE
    url = body.get("membridge_server_url")
    # As URL parsers read it: they skip blanks and control characters.
    if isinstance(url, str) and "".join(c for c in url if c > " ").lower().startswith(("http:", "https:")):
        body["membridge_server_url"] = CONTROL_PLANE
        # A key may be any text, but not every text can be sent in a header.
        if isinstance(body.get("admin_key"), str) and body["admin_key"]:
            body["admin_key"] = "fuzz"
    # Ids that the fuzzer makes up are no tasks; the contract refuses to depend on them.
    for task in [body, *(body["tasks"] if isinstance(body.get("tasks"), list) else [])]:
        if isinstance(task, dict) and case.path.endswith(("/llm-tasks", "/llm-tasks:batch")):
            give_project(task)
        needs = task.get("depends_on") if isinstance(task, dict) else None
        if isinstance(needs, list) and len(needs) <= 100 and all(map(is_made_up, needs)):
            task["depends_on"] = []
        if isinstance(task, dict) and case.path.endswith(("/llm-tasks", "/llm-tasks:batch")):
            give_files(task)
