-- Which programs can work with this schema: those that know at least migration number `since`. Migrations only widen the schema, so that
-- replicas of the version before go on while new ones start. A migration that must exclude older programs sets `since` to its own number.
CREATE TABLE schema_compatibility (
    id SMALLINT PRIMARY KEY CHECK (id = 1),
    since BIGINT NOT NULL
);
INSERT INTO schema_compatibility (id, since) VALUES (1, 2);
