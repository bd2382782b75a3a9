-- Grounds an intent whose process may be dead, or drops it. Its owners become dirty, and leave flight so that they can
-- be corrected. If the transaction commits all the same, its confirmation makes them dirty again. An intent that was
-- announced in the future, because the clock was set back, is announced now.
-- KEYS  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)  leases (hash)
-- ARGV  1 intent  2 '1' to drop it
-- Reply 1 if it was still there; publishes its owners for open streams
local ready_now = redis.call('GET', ready)
if is_out_of_use(ready_now) then return LEFT end
local entry = redis.call('HGET', intents, ARGV[1])
local intent = entry and intent_of(entry)
local now = redis.call('TIME')[1]
if intent then
  -- rule: given_up
  for _, owner in ipairs(intent.owners) do
    mark_dirty(owner, ready_now, now)
    if not intent.grounded then land(owner) end
  end
  tell_listeners(intent.owners, now, redis.call('HGET', state, 'live_until'))
end
if ARGV[2] == '1' then return redis.call('HDEL', intents, ARGV[1]) end
if not intent then return 0 end
-- rule: stays
intent.grounded, intent.checked = true, tonumber(now)
intent.began = math.min(tonumber(intent.began) or 0, intent.checked)
redis.call('HSET', intents, ARGV[1], cjson.encode(intent))
return 1
