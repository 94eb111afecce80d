-- What removed tasks have used, by more than `usage_daily` has, which only programs before this migration still write. `key` stands for all
-- columns that are no sums; their texts are too long for an index of their own. `labels` are those of the task, as JSON.
CREATE TABLE usage_removed (
    key TEXT NOT NULL PRIMARY KEY,
    day BIGINT NOT NULL,
    agent_slug TEXT NOT NULL,
    model TEXT NOT NULL,
    context_id TEXT NOT NULL,
    project TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    created_by TEXT NOT NULL,
    labels TEXT NOT NULL,
    runs BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    cost_estimated BOOLEAN NOT NULL
);
CREATE INDEX usage_removed_day ON usage_removed (day);
