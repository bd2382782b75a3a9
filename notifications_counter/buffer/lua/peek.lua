-- Reads what Redis holds of owners at one moment, for a comparison with the rows.
-- KEYS  pending (zset)  flushing (zset)  ready (text)  intents (hash)  in_flight (hash)
-- ARGV  1 owners, as JSON
-- Reply for each owner: its cached total; its pending and its flushing delta ('' where there is none; where nobody
--       counts, everyone has an unknown one); 1 if it is in flight
local owners, ready_now, reply = cjson.decode(ARGV[1]), redis.call('GET', ready), {}
local flying, is_everyone = which_fly(owners)
local added, cut = redis.call('ZMSCORE', pending, unpack(owners)), redis.call('ZMSCORE', flushing, unpack(owners))
for i, owner in ipairs(owners) do
  local total = total_at(total_of(owner, ready_now)) or ''
  local waits = added[i] or (ready_now and ready_now ~= 'off') and '' or 'inf'
  reply[i] = {total, waits, cut[i] or '', (is_everyone or flying[i]) and 1 or 0}
end
return reply
