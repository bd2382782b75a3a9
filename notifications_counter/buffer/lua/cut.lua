-- Turns all that is pending into a batch, unless one is under way.
-- USES  pending (zset)  flushing (zset)  state (hash)
-- ARGV  1 mark in the database  2 its batch, empty if it has none  3 id for a new batch
-- Reply the id of the batch and its size; '' and 0 if nothing waits, or Redis and the database do not agree
local batch, mark = unpack(redis.call('HMGET', state, 'batch', 'mark'))
-- rule: agree
if mark ~= ARGV[1] and batch ~= ARGV[2] then return {'', 0} end
if not batch then
  if redis.call('EXISTS', pending) == 0 then return {'', 0} end
  redis.call('RENAME', pending, flushing) -- first, because Redis allows it without memory, and then the others
  batch = ARGV[3]
  redis.call('HSET', state, 'batch', batch, 'flushing_since', redis.call('HGET', state, 'pending_since') or 0)
  redis.call('HDEL', state, 'pending_since')
end
return {batch, redis.call('ZCARD', flushing)}
