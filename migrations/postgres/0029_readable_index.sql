-- Only SQLite's index changes.
SELECT 1;
