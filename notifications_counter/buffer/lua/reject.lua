-- Keeps rejected members for inspection: those that are not a primary key, or whose delta does not fit its column.
-- KEYS  state (hash)  dirty (zset)  leases (hash)  rejected (hash)
-- ARGV  1 '1' if the members are no longer to be recounted, else '0'
--       then for each: member, its delta, or 'unknown'
-- Reply the indexes of members that were not kept yet
local new = {}
for i = 2, #ARGV, 2 do
  local known = redis.call('HDEL', rejected, ARGV[i]) -- a script whose first write is this also runs without memory
  if known == 0 then new[#new + 1] = i / 2 end
  redis.call('HSET', rejected, ARGV[i], ARGV[i + 1])
  redis.call('HDEL', leases, ARGV[i])
  if ARGV[1] == '1' and redis.call('ZREM', dirty, ARGV[i]) == 1 then add('HINCRBY', state, 'dirty', -1) end
end
return new
