-- Audit entries by the request that caused them. Those of reconcilers have none. The server counts its own ids up, so most entries of this index
-- are appended.
CREATE INDEX audit_request ON audit (request_id, id) WHERE request_id IS NOT NULL;
