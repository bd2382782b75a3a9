-- Caches counts of a group, if nothing has changed since prepare_group. With the last of them the group becomes
-- readable.
-- KEYS  ready (text)
-- ARGV  1 ready  2 group  3 token  4 seconds to live, '' if more counts follow, then last value, count for each
-- Reply 1 if they were cached
local group = group_of(ARGV[2], ARGV[1])
-- rule: group_room
if redis.call('GET', ready) ~= ARGV[1] or redis.call('HGET', group, '') ~= ARGV[3] then return 0 end
if #ARGV > 4 then redis.call('HSET', group, unpack(ARGV, 5)) end
if ARGV[4] ~= '' then
  redis.call('HSET', group, '', 1)
  redis.call('EXPIRE', group, ARGV[4])
end
return 1
