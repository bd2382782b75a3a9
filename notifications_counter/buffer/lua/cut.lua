-- Makes what is pending the batch to flush, in the epoch that was checked; an unfinished batch comes first.
-- KEYS  1 state (hash)  2 pending (zset)  3 flushing (zset)
-- ARGV  1 epoch
-- Reply batch ('' if there is nothing, or Redis is in another epoch), its number of users
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return {'', 0} end
if redis.call('EXISTS', KEYS[3]) == 0 then
  if redis.call('EXISTS', KEYS[2]) == 0 then return {'', 0} end
  redis.call('RENAME', KEYS[2], KEYS[3])
  redis.call('HINCRBY', KEYS[1], 'batch', 1)
  local since = redis.call('HGET', KEYS[1], 'waiting_since')
  if since then
    redis.call('HDEL', KEYS[1], 'waiting_since')
    redis.call('HSET', KEYS[1], 'flushing_since', since)
  end
end
return {redis.call('HGET', KEYS[1], 'batch'), redis.call('ZCARD', KEYS[3])}
