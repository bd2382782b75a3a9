-- Reads owners of the batch by rank.
-- USES  flushing (zset)  ready (text)
-- ARGV  1 first rank  2 last rank
-- Reply owners and deltas in turn; a list of what is cached of each owner
local before_owner, totals = total_of(''), {}
local page = redis.call('ZRANGE', flushing, ARGV[1], ARGV[2], 'WITHSCORES')
for i = 1, #page, 2 do totals[#totals + 1] = before_owner .. page[i] end
return {page, #totals > 0 and redis.call('MGET', unpack(totals)) or {}}
