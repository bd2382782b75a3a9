-- Removes an intent and adds its deltas, once. A delta goes to pending, and to the cached total if there is one. An
-- owner is in doubt instead if
--   the intent is gone or grounded;
--   its delta is unknown, or belongs to another declaration than the one in force.
-- USES  pending (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  listeners (text)
-- ARGV  1 fingerprint of the declaration  2 id of the intent
--       3 its owners, as JSON  4 their deltas, as JSON (null: unknown)
-- Publishes the changed owners for open streams.
run_without_memory(intents)
local intent = intent_of(redis.call('HGET', intents, ARGV[2]))
-- rule: registry, rule: grounded
local lands = intent and not intent.grounded
-- rule: declared
local is_trusted = fingerprint == ARGV[1]
local deltas, changed = cjson.decode(ARGV[4]), {}
for i, owner in ipairs(cjson.decode(ARGV[3])) do
  local delta = deltas[i]
  local others = lands and land(owner)
  -- rule: unknown
  local is_known = lands and is_trusted and delta ~= cjson.null
  if is_known then add(owner, delta, others) else doubt(owner) end
  if delta ~= 0 then changed[#changed + 1] = owner end
end
note_pending()
redis.call('HDEL', intents, ARGV[2]) -- last: if the script fails, healing finds it
tell_listeners(changed)
