-- Reads owners of a batch by rank, while it is under way.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)
-- ARGV  1 batch  2 first rank  3 last rank
-- Reply owner, delta, cached total ('' if there is none), what is pending since the cut, …; nil if another batch is
--       under way
if redis.call('HGET', state, 'batch') ~= ARGV[1] then return false end
local ready_now = redis.call('GET', ready)
local page, reply = redis.call('ZRANGE', flushing, ARGV[2], ARGV[3], 'WITHSCORES'), {}
for i = 1, #page, 2 do
  if page[i] ~= SENTINEL then
    reply[#reply + 1], reply[#reply + 2] = page[i], page[i + 1]
    reply[#reply + 1] = total_at(total_of(page[i], ready_now)) or ''
    reply[#reply + 1] = redis.call('ZSCORE', pending, page[i]) or '0'
  end
end
return reply
