-- What went wrong in a run without making it fail, as a JSON list of texts.
ALTER TABLE results ADD COLUMN warnings TEXT NOT NULL DEFAULT '[]';
