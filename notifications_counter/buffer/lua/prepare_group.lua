-- Prepares to cache the counts of a group, which are about to be counted. A change meanwhile deletes the key.
-- KEYS  ready (text)  in_flight (hash)  dirty (zset)
-- ARGV  1 group  2 token, which is not a number  3 seconds after which the key expires  4 the most dirty owners to
--       look at
-- Reply ready, or '' if the counts cannot be cached: Redis is new, or an owner of the group may be dirty, or is in
--       flight
local ready_now = redis.call('GET', ready)
if ready_now == 'left' then return LEFT end
if not ready_now or redis.call('ZCARD', dirty) > tonumber(ARGV[4]) then return '' end
-- rule: group_flying
if redis.call('HGET', in_flight, ARGV[1]) then return '' end
-- rule: group_dirty
for _, owner in ipairs(redis.call('ZRANGE', dirty, 0, -1)) do
  if owner:sub(1, #ARGV[1]) == ARGV[1] then return '' end
end
local group = group_of(ARGV[1], ready_now)
redis.call('UNLINK', group)
redis.call('HSET', group, '', ARGV[2])
redis.call('EXPIRE', group, ARGV[3])
return ready_now
