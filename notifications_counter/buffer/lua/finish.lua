-- Drops the batch that the database has, if it is still that batch. Users whose delta was refused go to a recount.
-- KEYS  flushing (zset)  state (hash)  ready (text)  dirty (zset)  leases (hash)  stats (hash)
-- ARGV  1 batch  2 its mark in the database  3 milliseconds it took  4… users refused
-- Reply 1 if it was dropped
local users = redis.call('ZCARD', flushing)
if redis.call('HGET', state, 'batch') ~= ARGV[1] or users == 0 then return 0 end
redis.call('UNLINK', flushing)
redis.call('HSET', state, 'mark', ARGV[2])
redis.call('HDEL', state, 'flushing_since')
local epoch = redis.call('GET', ready)
local now = redis.call('TIME')[1]
for i = 4, #ARGV do mark_dirty(ARGV[i], epoch, now) end
redis.pcall('HINCRBY', stats, 'batches', 1)
redis.pcall('HINCRBY', stats, 'flushed', users)
redis.pcall('HINCRBY', stats, 'flush_ms', ARGV[3])
return 1
