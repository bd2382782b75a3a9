-- Keeps members that are not a primary key, and deltas that do not fit their column, for inspection.
-- KEYS  state (hash)  dirty (zset)  rejected (hash)
-- ARGV  1 '1' if the members waited for a recount, which they then no longer do, else ''
--       then for each: member, what was to be done with it
-- Reply nothing
for i = 2, #ARGV, 2 do
  redis.call('HDEL', rejected, ARGV[i]) -- a script whose first write is this also runs without memory
  redis.call('HSET', rejected, ARGV[i], ARGV[i + 1])
  if ARGV[1] == '1' and redis.call('ZREM', dirty, ARGV[i]) == 1 then redis.call('HINCRBY', state, 'dirty', -1) end
end
