-- Reads owners of the batch by rank.
-- KEYS  flushing (zset)  ready (text)
-- ARGV  1 first rank  2 last rank
-- Reply for each: owner, delta, cached total ('' if there is none)
local page, reply = redis.call('ZRANGE', flushing, ARGV[1], ARGV[2], 'WITHSCORES'), {}
for i = 1, #page, 2 do
  reply[#reply + 1] = {page[i], page[i + 1], total_at(total_of(page[i])) or ''}
end
return reply
