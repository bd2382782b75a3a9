-- A counter at one precision, and what time it is.
-- KEYS  1 its hash (slice start -> count)
-- Reply time in seconds; slice start, count, slice start, count, …
return {redis.call('TIME')[1], redis.call('HGETALL', KEYS[1])}
