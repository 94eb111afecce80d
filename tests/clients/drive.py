"""Runs a task by the generated Python client: create, claim, complete, read."""

import os

from generated import AuthenticatedClient
from generated.api.tasks import create_task, get_result, get_task, list_tasks
from generated.api.worker_protocol import claim_tasks
from generated.api.leases import complete_task
from generated.api.workers import register_worker
from generated.models import (
    Claim,
    Completion,
    Error,
    ErrorCode,
    Labels,
    NewCapabilities,
    NewMetrics,
    NewPolicy,
    NewTask,
    NewWorker,
    Outcome,
    Status,
)

key = os.environ["BLOOM_KEY"]
server = os.environ["BLOOM_SERVER"]
client = AuthenticatedClient(server, token=key, prefix="", auth_header_name="X-Runtime-API-Key", raise_on_unexpected_status=True)
with client:
    worker = register_worker.sync(
        client=client, body=NewWorker(name="python", capabilities=NewCapabilities(agents=["python"], max_concurrency=2))
    )
    assert worker.id == "python" and worker.capabilities.max_concurrency == 2, worker

    labels = Labels()
    labels["team"] = "docs"
    body = NewTask(context_id="python", agent_slug="python", prompt="Say hello", policy=NewPolicy(timeout_sec=60), labels=labels)
    task = create_task.sync(client=client, body=body)
    assert task.status == Status.QUEUED and task.policy.timeout_sec == 60 and task.labels["team"] == "docs", task

    claimed = claim_tasks.sync("python", client=client, body=Claim(max_=1))
    [mine] = claimed.leases
    assert mine.task.id == task.id and mine.task.prompt == "Say hello", claimed
    done = complete_task.sync(
        str(task.id),
        client=client,
        body=Completion(status=Outcome.SUCCESS, output="hello", metrics=NewMetrics(duration_ms=5), lease_id=mine.lease.id),
    )
    assert done.task.status == Status.COMPLETED, done
    assert get_result.sync(str(task.id), client=client).output == "hello"
    assert [one.id for one in list_tasks.sync(client=client, status=Status.COMPLETED, label=["team=docs"], limit=5)] == [task.id]

    missing = get_task.sync("019c936e-3800-7000-8000-000000000001", client=client)
    assert isinstance(missing, Error) and missing.code == ErrorCode.NOT_FOUND and missing.error == "Task not found", missing
    refused = create_task.sync(client=client, body=NewTask(context_id="python", agent_slug="python", prompt=""))
    assert refused.code == ErrorCode.VALIDATION and "prompt" in refused.error.field_errors.additional_properties, refused
