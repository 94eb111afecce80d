//! Removes tasks with all rows that belong to them, on request or because of their age.

use crate::reads::usage::{GROUP, SUMS, runs, sums};
use crate::sql::cells::Type;
use crate::sql::dialect::{Statement, statement};
use bloom_core::file::UNUSED_MS;

// Rows are locked in the order of their keys, so that two removals don't deadlock.
statement!(
    KEEP_USAGE,
    |d| "INSERT INTO usage_removed (key, {GROUP}, {SUMS}) \
    SELECT {} AS key, {GROUP}, {SUMS} FROM (SELECT {GROUP}, {} FROM ({}) AS r GROUP BY {GROUP}) AS g WHERE true ORDER BY key \
    ON CONFLICT (key) DO UPDATE SET runs = {}, input_tokens = {}, output_tokens = {}, \
        cost_usd = usage_removed.cost_usd + excluded.cost_usd, cost_estimated = usage_removed.cost_estimated OR excluded.cost_estimated",
    d.digest(GROUP),
    sums(d),
    runs(&format!("l.task_id {}", d.any(Type::Uuid, 1))),
    d.plus("usage_removed.runs", "excluded.runs"),
    d.plus("usage_removed.input_tokens", "excluded.input_tokens"),
    d.plus("usage_removed.output_tokens", "excluded.output_tokens")
);
statement!(DELETE_STATES, |d| "DELETE FROM task_state WHERE id {}", d.any(Type::Uuid, 1));
statement!(DELETE_SPECS, |d| "DELETE FROM tasks WHERE id {}", d.any(Type::Uuid, 1));
statement!(DELETE_LABELS, |d| "DELETE FROM task_labels WHERE task_id {}", d.any(Type::Uuid, 1));
statement!(DELETE_DEPENDENCIES, |d| "DELETE FROM task_deps WHERE task_id {}", d.any(Type::Uuid, 1));
statement!(DELETE_LEASES, |d| "DELETE FROM leases WHERE task_id {}", d.any(Type::Uuid, 1));
statement!(DELETE_RESULTS, |d| "DELETE FROM results WHERE task_id {}", d.any(Type::Uuid, 1));
statement!(DELETE_EVENTS, |d| "DELETE FROM task_events WHERE task_id {}", d.any(Type::Uuid, 1));

// The contents of the files are removed later, in small parts.
statement!(
    DROP_CHUNKS_OF_TASKS,
    |d| "INSERT INTO chunk_removals (file_id, due_at) SELECT id, 0 FROM files WHERE task_id {} AND object_url IS NULL ON CONFLICT DO NOTHING",
    d.any(Type::Uuid, 1)
);
// The removal checks later whether another task also uses the upload.
statement!(
    FREE_INPUTS,
    |d| "UPDATE files SET remove_at = created_at + {UNUSED_MS} WHERE id IN (SELECT file_id FROM task_inputs WHERE task_id {})",
    d.any(Type::Uuid, 1)
);
statement!(DELETE_INPUTS, |d| "DELETE FROM task_inputs WHERE task_id {}", d.any(Type::Uuid, 1));
statement!(DELETE_FILES_OF_TASKS, |d| "DELETE FROM files WHERE task_id {}", d.any(Type::Uuid, 1));
statement!(
    DROP_CHUNKS,
    |d| "INSERT INTO chunk_removals (file_id, due_at) SELECT id, 0 FROM files WHERE id {} AND object_url IS NULL ON CONFLICT DO NOTHING",
    d.any(Type::Uuid, 1)
);
statement!(DELETE_FILES, |d| "DELETE FROM files WHERE id {}", d.any(Type::Uuid, 1));
// When the last task of a context is removed, agents also remove what they keep for it. A task that is created there later begins a new
// conversation, so the reset is no longer needed.
statement!(
    DELETE_RESETS,
    |d| "DELETE FROM context_resets WHERE context_id IN (SELECT context_id FROM tasks WHERE id {0}) \
    AND NOT EXISTS (SELECT 1 FROM tasks o WHERE o.context_id = context_resets.context_id AND NOT o.id {0})",
    d.any(Type::Uuid, 1)
);

/// The statements that remove the files in parameter 1, in this order.
pub(crate) const OF_FILES: [&Statement; 2] = [&DROP_CHUNKS, &DELETE_FILES];

/// The statements that remove the tasks in parameter 1, in this order. The usage of their runs and their audit entries are kept.
pub(crate) const STATEMENTS: [&Statement; 13] = [
    &KEEP_USAGE,
    &DELETE_RESETS,
    &DELETE_STATES,
    &DELETE_SPECS,
    &DELETE_LABELS,
    &DELETE_DEPENDENCIES,
    &DELETE_LEASES,
    &DELETE_RESULTS,
    &DELETE_EVENTS,
    &DROP_CHUNKS_OF_TASKS,
    &DELETE_FILES_OF_TASKS,
    &FREE_INPUTS,
    &DELETE_INPUTS,
];
