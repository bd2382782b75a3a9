-- Drops the batch that the database has, if it is still that batch; users whose delta was refused go to a recount.
-- KEYS  1 flushing (zset)  2 state (hash)  3 ready (integer)  4 dirty (zset)  5 stats (hash)
-- ARGV  1 base of the shard's keys  2 batch  3 milliseconds it took  4… users refused
-- Reply 1 if it was dropped
local users = redis.call('ZCARD', KEYS[1])
if redis.call('HGET', KEYS[2], 'batch') ~= ARGV[2] or users == 0 then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('HDEL', KEYS[2], 'flushing_since')
local ready = redis.call('GET', KEYS[3])
local now = redis.call('TIME')[1]
for i = 4, #ARGV do
  redis.call('DEL', ARGV[1] .. ':lease:' .. ARGV[i])
  if ready then redis.call('DEL', ARGV[1] .. ':total:' .. ready .. ':' .. ARGV[i]) end
  redis.call('ZADD', KEYS[4], 'NX', now, ARGV[i])
end
local stats = KEYS[5]
redis.pcall('HINCRBY', stats, 'batches', 1)
redis.pcall('HINCRBY', stats, 'flushed', users)
redis.pcall('HINCRBY', stats, 'flush_ms', ARGV[3])
return 1
