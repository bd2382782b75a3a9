-- Registers a part of a transaction before the database commits it.
-- KEYS  state (hash)  ready (text)  open (hash)
-- ARGV  1 part  2… its users
-- Reply the part's seq
local epoch = redis.call('GET', ready)
if epoch == 'left' then return LEFT end
local seq = redis.call('HINCRBY', state, 'seq', 1)
local now = tonumber(redis.call('TIME')[1])
local users = {}
for i = 2, #ARGV do users[i - 1] = ARGV[i] end
redis.call('HSET', open, ARGV[1], cjson.encode({
  seq = seq, ready = epoch or '', began = now, checked = now, users = users,
}))
return seq
