-- Notes that a process has trouble with Redis, or had an outage.
-- KEYS  trouble (hash)
-- ARGV  1 reason  2 seconds without trouble after which the next one is new
-- Reply nothing
local now = redis.call('TIME')[1]
redis.call('HDEL', trouble, '') -- no such field; a script whose first write is this also runs without memory
if now - (redis.call('HGET', trouble, 'at') or 0) > tonumber(ARGV[2]) then redis.call('HSET', trouble, 'since', now) end
redis.call('HSET', trouble, 'at', now, 'reason', ARGV[1])
