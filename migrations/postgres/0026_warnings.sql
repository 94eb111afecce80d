-- What went wrong in a run without making it fail, as a JSON list of texts.
ALTER TABLE results ADD COLUMN warnings TEXT NOT NULL DEFAULT '[]';
CREATE VIEW results_row_4 AS SELECT
    id, artifact_id, task_id, lease_id, worker_id, status, output, error_message, duration_ms, tokens_used, completed_at,
    artifact_type, artifact_tags, object_url, object_bytes, preview, branch, commit_id, warnings
    FROM results;
