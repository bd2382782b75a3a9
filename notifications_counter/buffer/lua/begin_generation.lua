-- Begins a generation. What was cached is not found any more, and what was pending is dropped: the walk that follows
-- looks at everyone. Intents stay, and so do their owners in flight.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)
-- ARGV  1 generation, the first mark  2 fingerprint of the declaration  3 name of the server, as it said before
-- Reply 1, or 0 if counting is off
-- rule: window
if redis.call('GET', ready) == 'off' then return 0 end
redis.call('UNLINK', pending, flushing, state)
redis.call('HSET', state, 'mark', ARGV[1], 'server', ARGV[3])
redis.call('SET', ready, ARGV[1] .. ':' .. ARGV[2])
return 1
