-- Reads owners of the batch by rank.
-- KEYS  pending (zset)  flushing (zset)  ready (text)
-- ARGV  1 first rank  2 last rank
-- Reply for each: owner, delta, cached total ('' if there is none), what is pending since the cut
local ready_now = redis.call('GET', ready)
local page, reply = redis.call('ZRANGE', flushing, ARGV[1], ARGV[2], 'WITHSCORES'), {}
for i = 1, #page, 2 do
  if page[i] ~= SENTINEL then
    local total, later = total_at(total_of(page[i], ready_now)), redis.call('ZSCORE', pending, page[i])
    reply[#reply + 1] = {page[i], page[i + 1], total or '', later or '0'}
  end
end
return reply
