-- What the branches of a project's contexts begin with, and the prefixes that it had before, as a JSON list, newest first.
ALTER TABLE projects ADD COLUMN branch_prefix TEXT NOT NULL DEFAULT 'bloom';
ALTER TABLE projects ADD COLUMN former_branch_prefixes TEXT NOT NULL DEFAULT '[]';
