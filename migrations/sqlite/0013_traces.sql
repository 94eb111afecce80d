-- The trace that a task belongs to: the `traceparent` of W3C Trace Context that its attempts have as their parent; NULL if there is none.
ALTER TABLE tasks ADD COLUMN traceparent TEXT;
