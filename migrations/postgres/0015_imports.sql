-- Imports are numbered in the order in which they began, so that a server notices one that began after its start.
ALTER TABLE imports ADD COLUMN number BIGINT NOT NULL DEFAULT 0;
