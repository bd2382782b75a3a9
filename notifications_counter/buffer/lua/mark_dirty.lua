-- Sends users to a recount; until then readers count their rows.
-- KEYS  state (hash)  ready (text)  dirty (zset)  leases (hash)
-- ARGV  the users
-- Reply the number of users; processes with open streams are told of them
local epoch = redis.call('GET', ready)
if epoch == 'left' then return LEFT end
local now = redis.call('TIME')[1]
for _, user in ipairs(ARGV) do mark_dirty(user, epoch, now) end
tell_listeners(ARGV, now, redis.call('HGET', state, 'live_until'))
return #ARGV
