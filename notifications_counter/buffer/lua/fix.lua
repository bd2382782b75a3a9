-- Corrects owners if the caller still has their leases, they are not in flight, and the epoch is the one in which they
-- were counted. A reader that repairs owners during a recovery also caches their totals.
-- KEYS  pending (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)  leases (hash)
-- ARGV  1 epoch and fingerprint, as in ready  2 token  then as JSON: 3 the owners  4 their corrections, 0 for none
--       5 their totals, or '' to cache none  6 seconds for which totals live
-- Reply the indexes of owners that were not corrected: all if Redis is in another epoch, under another declaration, or
--       has lost pending; also of those that stay dirty, because only a part of their correction can be added exactly;
--       publishes the changed owners for open streams
local about = redis.call('HMGET', state, 'epoch', 'waiting_since', 'declared')
-- rule: waiting
local lost = about[2] and redis.call('EXISTS', pending) == 0 -- a correction would hide it
-- rule: epoch
local current = (about[1] or '') .. ':' .. (about[3] or '') == ARGV[1] and not lost
local ready_now = redis.call('GET', ready)
local now = redis.call('TIME')[1]
local recovering = is_recovering(ready_now)
local owners, corrections = cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
local totals = ready_now and ARGV[5] ~= '' and cjson.decode(ARGV[5]) or {}
local held = current and #owners > 0 and redis.call('HMGET', leases, unpack(owners)) or {}
local flying = current and which_fly(owners) or {}
local reply, fixed, stale, changed, indexes, repaired = {}, {}, {}, {}, {}, {}
for i, owner in ipairs(owners) do
  -- rules: lease, fix_flying
  if is_held(held[i], ARGV[2]) and not flying[i] then
    fixed[#fixed + 1] = owner
    local is_wrong = corrections[i] ~= 0
    -- During a recovery, the totals of repaired owners stay if they are right.
    if ready_now and (is_wrong or not recovering) then stale[#stale + 1] = total_of(owner, ready_now) end
    if is_wrong then changed[#changed + 1], indexes[#indexes + 1] = owner, i end
    -- rule: repair_fix
    if totals[i] then repaired[#repaired + 1] = i end
  else
    reply[#reply + 1] = i
  end
end
if #fixed > 0 then
  redis.call('HDEL', leases, unpack(fixed))
  if #stale > 0 then redis.call('DEL', unpack(stale)) end
  local dropped = redis.call('EXISTS', dirty) == 1 and redis.call('ZREM', dirty, unpack(fixed)) or 0
  if dropped > 0 then add('HINCRBY', state, 'dirty', -dropped) end
  for _, i in ipairs(repaired) do redis.call('SET', total_of(owners[i], ready_now), totals[i], 'EX', ARGV[6]) end
  if #changed > 0 then
    local sums, before = {}, redis.call('ZMSCORE', pending, unpack(changed))
    for n, owner in ipairs(changed) do
      local correction = corrections[indexes[n]]
      local sum = (before[n] or 0) + correction
      if not (is_exact(correction) and is_exact(sum)) then
        sum = math.max(1 - 2 ^ 53, math.min(sum, 2 ^ 53 - 1))
        mark_dirty(owner, ready_now, now)
        reply[#reply + 1] = indexes[n]
      end
      sums[2 * n - 1], sums[2 * n] = string.format('%.17g', sum), owner
    end
    redis.call('ZADD', pending, unpack(sums)) -- at once, which is faster than one ZINCRBY for each
  end
  if #changed > 0 and not about[2] then redis.call('HSET', state, 'waiting_since', now) end
end
tell_listeners(changed, now, redis.call('HGET', state, 'live_until'))
return reply
