-- Reads a counter at one precision, and the time.
-- KEYS  counter (hash: slice start → count)
-- Reply time in seconds; slice start, count, slice start, count, …
return {redis.call('TIME')[1], redis.call('HGETALL', KEYS[1])}
