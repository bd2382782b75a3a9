-- Changes nothing, in a way that is refused where changes are.
-- KEYS  1 a key that does not exist
-- Reply 0
return redis.call('DEL', KEYS[1])
