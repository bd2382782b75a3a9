-- Has readers count rows until a new epoch begins: a recovery under way can no longer complete.
-- KEYS  state (hash)  ready (text)
-- ARGV  1 fingerprint of the declaration in force, if it waits for this epoch, else '': from now on, heartbeats of
--       other declarations are noted, as if there had just been one
-- Reply nothing
if is_out_of_use(redis.call('GET', ready)) then return LEFT end
-- rule: forget
redis.call('DEL', ready)
local now, about = redis.call('TIME')[1], redis.call('HMGET', state, 'awaited', 'heartbeat_at')
local future = (tonumber(about[2]) or 0) > tonumber(now) -- the clock was set back
if ARGV[1] ~= '' and (about[1] ~= ARGV[1] or future) then
  redis.call('HSET', state, 'awaited', ARGV[1], 'heartbeat_at', now)
end
