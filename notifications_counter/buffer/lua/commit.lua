-- Takes parts out of open and adds their deltas, once. The users of a part are sent to a recount instead if the part is
-- gone or was begun under another value of ready, or if pending was lost, which would no longer show if it were filled
-- again. So is a user who was corrected after the part began, or may have been if the fences were lost, and during a
-- recovery a user without a total, because nobody knows yet what the rows say.
-- KEYS  pending (zset)  state (hash)  ready (text)  open (hash)  fences (zset)  dirty (zset)  leases (hash)
-- ARGV  1 fingerprint of the declaration; if another one is in force, everyone goes to a recount
--       then for each part: id, number of pairs, and the pairs user, delta ('?': unknown)
-- Reply the number of users sent to a recount; processes with open streams are told of all users
local epoch = redis.call('GET', ready)
if epoch == 'left' then return LEFT end
local totals = epoch and total_of('', epoch)
local recovering = is_recovering(epoch)
local now = redis.call('TIME')[1]
local about = redis.call('HMGET', state, 'live_until', 'waiting_since', 'declared', 'awaited', 'fenced')
local leased = redis.call('EXISTS', leases) == 1
local lost = about[2] and redis.call('EXISTS', pending) == 0
local foreign = about[3] and about[3] ~= ARGV[1]
local fenced = redis.call('EXISTS', fences) == 1
local lost_fence = not fenced and tonumber(about[5]) or 0
local added, sent = false, 0
local changed = about[1] and {} -- most shards never have a listener

local i = 2
while i <= #ARGV do
  local entry = redis.call('HGET', open, ARGV[i])
  redis.call('HDEL', open, ARGV[i])
  local seq
  local part = entry and part_of(entry)
  if part and epoch and part.ready == epoch and not lost and not foreign then seq = part.seq end
  local last = i + 1 + 2 * tonumber(ARGV[i + 1])
  for j = i + 2, last, 2 do
    local user, delta = ARGV[j], ARGV[j + 1]
    if changed then changed[#changed + 1] = user end
    local fence = fenced and tonumber(redis.call('ZSCORE', fences, user) or 0) or lost_fence
    local total = seq and redis.call('EXISTS', totals .. user) == 1
    if not seq or delta == '?' or fence >= seq or (recovering and not total) then
      mark_dirty(user, epoch, now)
      sent = sent + 1
    else
      redis.call('ZINCRBY', pending, delta, user)
      -- If something else wrote the total, it counts as missing.
      if total and not add('INCRBY', totals .. user, delta) then redis.call('DEL', totals .. user) end
      if leased then redis.call('HDEL', leases, user) end
      local group, rest = group_of(user, epoch)
      local stamp = group and redis.call('HGET', group, '')
      if stamp and seq <= (tonumber(stamp) or math.huge) then
        redis.call('UNLINK', group)
      elseif stamp then
        local count = add('HINCRBY', group, rest, delta)
        if count == 0 then redis.call('HDEL', group, rest) end
        if not count then redis.call('UNLINK', group) end
      end
      added = true
    end
  end
  i = last + 1
end
if added and not about[2] then redis.call('HSET', state, 'waiting_since', now) end
if fenced and redis.call('EXISTS', open) == 0 then redis.call('UNLINK', fences) end
hear(ARGV[1], about[3], about[4])
if changed then tell_listeners(changed, now, about[1]) end
return sent
