-- Starts an epoch on a Redis that is in an older one: what it held unflushed is void. open, dirty and fences stay.
-- KEYS  1 ready (integer)  2 pending (zset)  3 flushing (zset)  4 state (hash)
-- ARGV  1 epoch  2 first batch number of the epoch
-- Reply 1 if the epoch was started
local current = redis.call('HGET', KEYS[4], 'epoch')
if current and tonumber(current) >= tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[4], 'waiting_since', 'flushing_since')
redis.call('HSET', KEYS[4], 'epoch', ARGV[1], 'batch', ARGV[2],
  'server', redis.call('INFO', 'server'):match('run_id:(%w+)'))
return 1
