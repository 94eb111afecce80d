-- The same index without octet_length, which sqlite3 programs before 3.43 do not have: they could not read the file at all.
DROP INDEX results_to_move;
CREATE INDEX results_to_move ON results (artifact_id) WHERE length(CAST(output AS BLOB)) > 65536;
