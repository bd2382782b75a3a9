-- Reads a counter at one precision, and what time it is.
-- KEYS  counter (hash: slice start → count)
-- Reply time in seconds; slice start, count, slice start, count, …
return {redis.call('TIME')[1], redis.call('HGETALL', counter)}
