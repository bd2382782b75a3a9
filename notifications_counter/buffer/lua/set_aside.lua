-- Keeps owners that cannot be stored, for inspection, until they can.
-- KEYS  aside (hash)
-- ARGV  for each: owner, reason
-- Reply the indexes of those that were not kept yet
redis.call('HDEL', aside, SENTINEL) -- no such owner; a script whose first write is this also runs without memory
local new = {}
for i = 1, #ARGV, 2 do
  if redis.call('HSET', aside, ARGV[i], ARGV[i + 1]) == 1 then new[#new + 1] = (i + 1) / 2 end
end
return new
