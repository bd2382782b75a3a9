-- Marks owners as dirty: readers count their rows until a recount.
-- KEYS  state (hash)  ready (text)  dirty (zset)  leases (hash)
-- ARGV  the owners
-- Reply the number of owners; publishes them for open streams
local ready_now = redis.call('GET', ready)
if is_out_of_use(ready_now) then return LEFT end
local now = redis.call('TIME')[1]
for _, owner in ipairs(ARGV) do mark_dirty(owner, ready_now, now) end
tell_listeners(ARGV, now, redis.call('HGET', state, 'live_until'))
return #ARGV
