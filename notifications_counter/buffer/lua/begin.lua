-- Registers a part of a transaction before the database commits it.
-- KEYS  1 state (hash)  2 ready (integer)  3 open (hash)
-- ARGV  1 part  2… its users
-- Reply the part's seq
local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
local now = tonumber(redis.call('TIME')[1])
local users = {}
for i = 2, #ARGV do users[i - 1] = ARGV[i] end
redis.call('HSET', KEYS[3], ARGV[1], cjson.encode({
  seq = seq, ready = redis.call('GET', KEYS[2]) or '', began = now, checked = now, users = users,
}))
return seq
