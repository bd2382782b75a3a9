-- Drops a batch that the database has, if it is still under way.
-- USES  flushing (zset)  state (hash)
-- ARGV  1 batch  2 mark with which the database has it
-- Reply for how many seconds its oldest change has waited; nil if another batch is under way, or none
-- rule: drop_batch
if redis.call('HGET', state, 'batch') ~= ARGV[1] then return end
local now = redis.call('TIME')[1]
local since = redis.call('HGET', state, 'flushing_since') or now
redis.call('UNLINK', flushing)
redis.call('HDEL', state, 'batch', 'flushing_since')
redis.call('HSET', state, 'mark', ARGV[2])
return now - since
