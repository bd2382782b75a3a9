-- Announces an intent: owners whose counts a transaction is about to change. From now on they are in flight, and
-- readers count their rows.
-- USES  state (hash)  ready (text)  intents (hash)  in_flight (hash)
-- ARGV  1 intent  2 owners of the intent, as JSON  3 '1' if the writer expects `state`
-- Reply 1; 0 if Redis is new or was emptied; 2 if counting is off
if ready_now == 'off' then return 2 end
-- rule: unknown_redis
if ARGV[3] == '1' and redis.call('HEXISTS', state, 'mark') == 0 then return 0 end
local now = redis.call('TIME')[1]
local entry = '{"began":' .. now .. ',"checked":' .. now .. ',"owners":' .. ARGV[2] .. '}'
if redis.call('HSETNX', intents, ARGV[1], entry) == 0 then return 1 end -- it was sent twice
for _, owner in ipairs(cjson.decode(ARGV[2])) do
  -- rule: flying
  redis.call('HINCRBY', in_flight, owner, 1)
  local key = total_of(owner)
  local total, cached = total_at(key)
  -- rule: flagged, rule: lease
  if total then redis.call('SET', key, total .. '!', 'KEEPTTL') elseif cached then redis.call('DEL', key) end
  -- rule: everyone
  if owner == EVERYONE then doubt(owner) end
end
return 1
