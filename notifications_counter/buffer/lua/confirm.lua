-- Removes an intent and adds its deltas, once. The owners whose counts have changed become dirty instead if
--   the intent is gone or grounded, or was announced under another value of ready;
--   another declaration is in force;
--   pending was lost, which a new one would hide.
-- A single owner becomes dirty instead if
--   Redis has lost that it is in flight;
--   it has no total during a recovery, when nobody knows yet what the rows say;
--   its delta, or its pending change, is too large to be exact.
-- KEYS  pending (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)  leases (hash)
-- ARGV  1 fingerprint of the declaration  2 id of the intent
--       3 owners whose counts have changed, as JSON  4 their deltas, as JSON (null: unknown)
-- Reply the number of owners that are dirty now, or the error TOO_LARGE with one that became so because its change is
--       too large; publishes the changed owners for open streams
local ready_now = redis.call('GET', ready)
if is_out_of_use(ready_now) then return LEFT end
local recovering = is_recovering(ready_now)
local now = redis.call('TIME')[1]
local about = redis.call('HMGET', state, 'live_until', 'waiting_since', 'declared', 'awaited')
local leased = redis.call('EXISTS', leases) == 1
-- rule: waiting
local lost = about[2] and redis.call('EXISTS', pending) == 0
-- rule: declared
local foreign = about[3] and about[3] ~= ARGV[1]
local entry = redis.call('HGET', intents, ARGV[2])
-- rule: registry
local intent = entry and intent_of(entry)
-- rule: grounded
local is_in_flight = intent and not intent.grounded
-- rules: announced_ready, straddle
local is_trusted = is_in_flight and ready_now and intent.ready == ready_now and not lost and not foreign
local added, sent, too_large = false, 0, nil
local changed = about[1] and {} -- most shards never have a listener

local function change(owner, delta)
  local key = total_of(owner, ready_now)
  local total = total_at(key)
  -- rules: unknown, witness
  local is_known = is_trusted and delta ~= cjson.null and (total or not recovering)
  local is_added = is_known and is_exact(delta)
  if delta ~= 0 and is_added then
    is_added = is_exact(redis.call('ZINCRBY', pending, string.format('%.0f', delta), owner))
    -- rule: lease
    if leased then redis.call('HDEL', leases, owner) end
    added = true
  end
  local others = is_in_flight and land(owner)
  if changed and delta ~= 0 then changed[#changed + 1] = owner end
  -- rule: flying_lost
  if is_in_flight and not others or delta ~= 0 and not is_added then
    if mark_dirty(owner, ready_now, now) and is_known and not is_added then too_large = owner end
    sent = sent + 1
    return
  end
  if total then
    local sum = tonumber(total) + delta
    local text = string.format('%.0f', sum)
    -- rule: marked
    if is_exact(sum) then
      redis.call('SET', key, others == 0 and text or text .. '!', 'KEEPTTL')
    else
      redis.call('DEL', key)
    end
  end
end

redis.call('HDEL', intents, '') -- no such intent; a script whose first write is this also runs without memory
local unchanged = {}
for _, owner in ipairs(is_in_flight and intent.owners or {}) do unchanged[owner] = true end
local deltas = cjson.decode(ARGV[4])
for i, owner in ipairs(cjson.decode(ARGV[3])) do
  unchanged[owner] = nil
  change(owner, deltas[i])
end
for owner in pairs(unchanged) do change(owner, 0) end
redis.call('HDEL', intents, ARGV[2]) -- last: if the script fails, its owners are still in flight
if added and not about[2] then redis.call('HSET', state, 'waiting_since', now) end
heartbeat(ARGV[1], about[3], about[4])
if changed then tell_listeners(changed, now, about[1]) end
return too_large and redis.error_reply('TOO_LARGE ' .. too_large) or sent
