-- Drops a batch that the database has, if it is still under way. Owners whose delta the database refused become dirty.
-- KEYS  flushing (zset)  state (hash)  ready (text)  dirty (zset)  leases (hash)
-- ARGV  1 batch  2 its id in the database  3… owners refused
-- Reply 1 if it was dropped
-- rule: finish_batch
if redis.call('HGET', state, 'batch') ~= ARGV[1] or redis.call('EXISTS', flushing) == 0 then return 0 end
redis.call('UNLINK', flushing)
-- rule: batch_id
redis.call('HSET', state, 'batch_id', ARGV[2])
redis.call('HDEL', state, 'flushing_since')
local ready_now = redis.call('GET', ready)
local now = redis.call('TIME')[1]
-- rule: refused
for i = 3, #ARGV do mark_dirty(ARGV[i], ready_now, now) end
return 1
