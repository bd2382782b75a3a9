-- Keeps what no user can be made of, or no column holds, for inspection.
-- KEYS  1 rejected (hash)  2 dirty (zset), if it waited for a recount, which it then does no longer
-- ARGV  member, what was to be done with it, …
-- Reply the number of members
for i = 1, #ARGV, 2 do
  redis.call('HDEL', KEYS[1], ARGV[i]) -- a script that begins so runs without memory, too
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  if KEYS[2] then redis.call('ZREM', KEYS[2], ARGV[i]) end
end
return #ARGV / 2
