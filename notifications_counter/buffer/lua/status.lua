-- Reads the state of a shard at one moment.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  dirty (zset)  rejected (hash)
--       database (text)
-- Reply two lists of name, value, …: the fields of state; then ready and dirty_since ('' where missing), the time now,
--       the sizes of other keys, and known, 1 if Redis knows which database came last
local ready_now = redis.call('GET', ready)
if is_out_of_use(ready_now) then return LEFT end
local names = {'epoch', 'declared', 'heartbeat_at', 'server', 'batch', 'batch_id', 'dirty', 'waiting_since',
  'flushing_since', 'live_until'}
local fields = {}
for i, value in ipairs(redis.call('HMGET', state, unpack(names))) do
  if value then fields[#fields + 1], fields[#fields + 2] = names[i], value end
end
return {fields, {
  'ready', ready_now or '',
  'dirty_since', redis.call('ZRANGE', dirty, 0, 0, 'WITHSCORES')[2] or '',
  'now', redis.call('TIME')[1],
  'pending', redis.call('ZCARD', pending),
  'flushing', redis.call('ZCARD', flushing),
  'intents', redis.call('HLEN', intents),
  'dirty', redis.call('ZCARD', dirty),
  'rejected', redis.call('HLEN', rejected),
  'known', redis.call('EXISTS', database),
}}
