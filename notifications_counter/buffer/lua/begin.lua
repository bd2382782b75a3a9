-- Registers a part of a transaction before the database commits it. Not in a Redis that is behind the database, because
-- the address may have led the process to another one, where no flusher runs.
-- KEYS  state (hash)  ready (text)  open (hash)
-- ARGV  1 part  2 epoch that the database knows  3… users of the part
-- Reply the part's seq
local epoch = redis.call('GET', ready)
if epoch == 'left' then return LEFT end
if not epoch and is_behind(ARGV[2]) then return LEFT end
local seq = redis.call('HINCRBY', state, 'seq', 1)
local now = tonumber(redis.call('TIME')[1])
local users = {}
for i = 3, #ARGV do users[i - 2] = ARGV[i] end
redis.call('HSET', open, ARGV[1], cjson.encode({
  seq = seq, ready = epoch or '', began = now, checked = now, users = users,
}))
return seq
