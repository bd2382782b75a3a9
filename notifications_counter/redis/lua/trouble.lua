-- Notes that a process has trouble with Redis, or had an outage; and reads the last trouble.
-- KEYS  trouble (hash)
-- ARGV  1 reason, '' to read only  2 seconds without trouble after which the next one is new
-- Reply time now, then the time of the trouble, when it began, and its reason, nil if there is none
local trouble, now = KEYS[1], redis.call('TIME')[1]
if ARGV[1] ~= '' then
  redis.call('HDEL', trouble, '') -- after such a first write, Redis allows others even without memory
  local last = redis.call('HGET', trouble, 'until') or 0
  if now - last > tonumber(ARGV[2]) then redis.call('HSET', trouble, 'since', now) end
  redis.call('HSET', trouble, 'until', now, 'reason', ARGV[1])
end
return {now, unpack(redis.call('HMGET', trouble, 'until', 'since', 'reason'))}
