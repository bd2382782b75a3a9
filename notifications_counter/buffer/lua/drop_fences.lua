-- Drops fences that are older than every open part, some at a time.
-- KEYS  fences (zset)
-- ARGV  1 seq of the oldest open part  2 how many to drop at most
-- Reply the number of fences dropped
local old = redis.call('ZRANGE', fences, '-inf', '(' .. ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #old > 0 then redis.call('ZREM', fences, unpack(old)) end
return #old
