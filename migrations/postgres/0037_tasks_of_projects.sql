-- The newest tasks of a project.
CREATE INDEX tasks_project ON tasks (project, id) WHERE project IS NOT NULL;
