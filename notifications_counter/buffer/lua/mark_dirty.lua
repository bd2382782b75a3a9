-- Sends users to a recount; until then readers count their rows.
-- KEYS  1 ready (integer)  2 dirty (zset)  3 state (hash)
-- ARGV  1 base of the shard's keys  2… users
-- Reply the number of users; processes with open streams are told of them
local ready = redis.call('GET', KEYS[1])
local now = redis.call('TIME')[1]
local users = {}
for i = 2, #ARGV do
  redis.call('DEL', ARGV[1] .. ':lease:' .. ARGV[i])
  if ready then redis.call('DEL', ARGV[1] .. ':total:' .. ready .. ':' .. ARGV[i]) end
  redis.call('ZADD', KEYS[2], 'NX', now, ARGV[i])
  users[i - 1] = ARGV[i]
end
if #users > 0 and tonumber(redis.call('HGET', KEYS[3], 'live_until') or 0) >= tonumber(now) then
  redis.pcall('PUBLISH', ARGV[1] .. ':live', cjson.encode(users))
end
return #users
