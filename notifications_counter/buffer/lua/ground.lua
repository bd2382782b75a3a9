-- Grounds an intent whose process may be dead, or drops it. Its owners are in doubt, and leave flight. If its
-- transaction commits all the same, its confirmation doubts them again. An intent that was announced in the future,
-- because the clock was set back, is announced now. If it cannot be read, everyone is in doubt.
-- USES  pending (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  listeners (text)
-- ARGV  1 intent  2 '1' to drop it
-- Publishes its owners for open streams.
run_without_memory(intents)
local entry = redis.call('HGET', intents, ARGV[1])
if not entry then return end
local intent = intent_of(entry)
local owners = intent and intent.owners or {EVERYONE}
-- rule: grounded
local lands = intent and not intent.grounded
for _, owner in ipairs(owners) do
  -- rule: given_up
  doubt(owner)
  if lands then land(owner) end
end
note_pending()
tell_listeners(owners)
if ARGV[2] == '1' or not intent then return redis.call('HDEL', intents, ARGV[1]) end
-- rule: stays
intent.grounded, intent.checked = true, tonumber(redis.call('TIME')[1])
intent.began = math.min(tonumber(intent.began) or 0, intent.checked)
redis.call('HSET', intents, ARGV[1], cjson.encode(intent))
