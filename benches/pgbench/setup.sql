-- Ids that rise as the runtime's do, made of a number at next to no cost: inlined where it is used.
CREATE FUNCTION nid(bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT lpad(to_hex($1), 32, '0')::uuid $$;
