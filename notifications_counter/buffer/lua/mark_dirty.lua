-- Sends users to a recount; until then readers count their rows.
-- KEYS  1 ready (integer)  2 dirty (zset)
-- ARGV  1 base of the shard's keys  2… users
-- Reply the number of users
local ready = redis.call('GET', KEYS[1])
local now = redis.call('TIME')[1]
for i = 2, #ARGV do
  redis.call('DEL', ARGV[1] .. ':lease:' .. ARGV[i])
  if ready then redis.call('DEL', ARGV[1] .. ':total:' .. ready .. ':' .. ARGV[i]) end
  redis.call('ZADD', KEYS[2], 'NX', now, ARGV[i])
end
return #ARGV - 1
