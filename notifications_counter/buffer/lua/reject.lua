-- Keeps what no user can be made of for inspection, and takes it off the users to recount.
-- KEYS  1 dirty (zset)  2 rejected (hash)
-- ARGV  member, what was to be done with it, …
-- Reply the number of members
for i = 1, #ARGV, 2 do
  redis.call('ZREM', KEYS[1], ARGV[i])
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return #ARGV / 2
