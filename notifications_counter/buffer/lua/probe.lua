-- A no-op write. It fails if the server refuses writes.
-- KEYS  missing (none)
-- Reply 0
return redis.call('DEL', missing)
