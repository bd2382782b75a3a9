-- Begins a generation. What was cached is not found any more, and what was pending is dropped: the walk that follows
-- looks at everyone. Intents stay, and so do their owners in flight.
-- USES  pending (zset)  flushing (zset)  state (hash)  ready (text)
-- ARGV  1 generation, the first mark  2 fingerprint of the declaration  3 name of the server, as it said before
--       4 seconds until every process that takes counting for off asks again, and its transactions are over
-- Reply 1, or 0 if some may take it for off
-- rule: window
local now = redis.call('TIME')[1]
if ready_now == 'off' then  -- as it was before counting was switched on
  redis.call('DEL', ready)
  redis.call('HSET', state, 'on_at', now)
end
local on_at = redis.call('HGET', state, 'on_at')
if on_at and math.abs(now - on_at) < tonumber(ARGV[4]) then return 0 end
redis.call('UNLINK', pending, flushing, state) -- only faster: the walk looks at everyone
redis.call('HSET', state, 'mark', ARGV[1], 'server', ARGV[3])
redis.call('SET', ready, ARGV[1] .. ':' .. ARGV[2])
return 1
