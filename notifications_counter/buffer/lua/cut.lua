-- Turns all that is pending into a batch, in the epoch that was checked. An unfinished batch comes first.
-- KEYS  pending (zset)  flushing (zset)  state (hash)
-- ARGV  1 epoch  2 last batch that the database has finished: a Redis behind it has lost data
-- Reply batch ('' if nothing waits, or Redis is behind or in another epoch), its number of owners, the id of the batch
--       before it ('' if none)
local about = redis.call('HMGET', state, 'epoch', 'batch', 'batch_id', 'waiting_since')
-- rules: epoch, behind
if about[1] ~= ARGV[1] or (tonumber(about[2]) or -1) < tonumber(ARGV[2]) then return {'', 0, ''} end
if redis.call('EXISTS', flushing) == 0 then
  if redis.call('EXISTS', pending) == 0 then return {'', 0, ''} end
  redis.call('RENAME', pending, flushing)
  redis.call('HINCRBY', state, 'batch', 1)
  redis.call('HDEL', state, 'waiting_since')
  if about[4] then redis.call('HSET', state, 'flushing_since', about[4]) end
end
return {redis.call('HGET', state, 'batch'), redis.call('ZCARD', flushing), about[3] or ''}
