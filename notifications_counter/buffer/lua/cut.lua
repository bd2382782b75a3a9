-- Makes what is pending the batch to flush, in the epoch that was checked. An unfinished batch comes first.
-- KEYS  pending (zset)  flushing (zset)  state (hash)
-- ARGV  1 epoch
-- Reply batch ('' if there is nothing, or Redis is in another epoch), its number of users
if redis.call('HGET', state, 'epoch') ~= ARGV[1] then return {'', 0} end
if redis.call('EXISTS', flushing) == 0 then
  if redis.call('EXISTS', pending) == 0 then return {'', 0} end
  redis.call('RENAME', pending, flushing)
  redis.call('HINCRBY', state, 'batch', 1)
  local since = redis.call('HGET', state, 'waiting_since')
  if since then
    redis.call('HDEL', state, 'waiting_since')
    redis.call('HSET', state, 'flushing_since', since)
  end
end
return {redis.call('HGET', state, 'batch'), redis.call('ZCARD', flushing)}
