-- Announces an intent: owners whose counts a transaction is about to change. From now on they are in flight, and
-- readers count their rows. Refuses if Redis is behind the database, because the address may lead to another Redis now,
-- where no flusher runs.
-- KEYS  state (hash)  ready (text)  intents (hash)  in_flight (hash)
-- ARGV  1 intent  2 epoch that the database knows  3 owners of the intent, as JSON
-- Reply 1
local ready_now = redis.call('GET', ready)
if is_out_of_use(ready_now) then return LEFT end
-- rule: astray
if not ready_now and is_behind(ARGV[2]) then return LEFT end
-- rule: intents (something else has deleted them)
if redis.call('EXISTS', intents) == 0 and redis.call('EXISTS', in_flight) == 1 then redis.call('UNLINK', in_flight) end
local now = tonumber(redis.call('TIME')[1])
local owners = cjson.decode(ARGV[3])
local intent = {ready = ready_now or '', began = now, checked = now, owners = owners}
redis.call('HSET', intents, ARGV[1], cjson.encode(intent))
for _, owner in ipairs(owners) do take_off(owner, ready_now) end
return 1
