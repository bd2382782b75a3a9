-- Drops a batch that the database has, if it is still under way.
-- USES  flushing (zset)  state (hash)
-- ARGV  1 batch  2 mark with which the database has it
-- Reply 1 if it was dropped
-- rule: drop_batch
if redis.call('HGET', state, 'batch') ~= ARGV[1] then return 0 end
redis.call('UNLINK', flushing)
redis.call('HDEL', state, 'batch', 'flushing_since')
redis.call('HSET', state, 'mark', ARGV[2])
return 1
