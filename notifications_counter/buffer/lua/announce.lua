-- Announces an intent: the users whose counts a transaction is about to change, before the database commits it. From now
-- on they are in flight, and readers count their rows. Not in a Redis that is behind the database, because the address
-- may have led the process to another one, where no flusher runs.
-- KEYS  state (hash)  ready (text)  intents (hash)  in_flight (hash)
-- ARGV  1 intent  2 epoch that the database knows  3… its users
-- Reply 1
local epoch = redis.call('GET', ready)
if epoch == 'left' then return LEFT end
if not epoch and is_behind(ARGV[2]) then return LEFT end
-- If all intents are gone, something else deleted them.
if redis.call('EXISTS', intents) == 0 and redis.call('EXISTS', in_flight) == 1 then redis.call('UNLINK', in_flight) end
local now = tonumber(redis.call('TIME')[1])
local users = {unpack(ARGV, 3)}
redis.call('HSET', intents, ARGV[1], cjson.encode({ready = epoch or '', began = now, checked = now, users = users}))
for _, user in ipairs(users) do take_off(user, epoch) end
return 1
