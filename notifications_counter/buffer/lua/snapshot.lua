-- Reads what waits for some owners at one moment, and takes leases for their correction, or ends all leases on them.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)
--       leases (hash)
-- ARGV  1 the owners, as JSON  2 what to do with leases: 'take', 'take free', which takes those that nobody has, and
--       only during a recovery, 'end', or ''  3 token of the leases to take  4 seconds that they last
-- Reply ready, epoch, batch ('' where missing), 1 if a cut exists, then for each owner for whom something waits: its
--       place in the list, pending, flushing, 1 if dirty or in flight
local ready_now = redis.call('GET', ready)
if ready_now == 'left' then return LEFT end
local owners = cjson.decode(ARGV[1])
if #owners > 0 and ARGV[2] ~= '' and (ARGV[2] ~= 'take free' or is_recovering(ready_now)) then
  redis.call('HDEL', leases, '') -- no such owner; a script whose first write is this also runs without memory
  if ARGV[2] == 'end' then
    redis.call('HDEL', leases, unpack(owners))
  else
    local held, taken = ARGV[2] == 'take free' and redis.call('HMGET', leases, unpack(owners)) or {}, {}
    local mine = lease(ARGV[3], redis.call('TIME')[1])
    for i, owner in ipairs(owners) do
      if not held[i] then taken[#taken + 1], taken[#taken + 2] = owner, mine end
    end
    if #taken > 0 then redis.call('HSET', leases, unpack(taken)) end
    redis.call('EXPIRE', leases, ARGV[4])
  end
end
local function scores_in(key)
  return #owners > 0 and redis.call('EXISTS', key) == 1 and redis.call('ZMSCORE', key, unpack(owners)) or {}
end
local about = redis.call('HMGET', state, 'epoch', 'batch')
local reply = {ready_now or '', about[1] or '', about[2] or '', redis.call('EXISTS', flushing)}
-- rule: dirty_counts
local added, cut, doubtful = scores_in(pending), scores_in(flushing), scores_in(dirty)
-- rule: flying
local flying = which_fly(owners)
for i = 1, #owners do
  if added[i] or cut[i] or doubtful[i] or flying[i] then
    reply[#reply + 1] = i
    reply[#reply + 1] = added[i] or '0'
    reply[#reply + 1] = cut[i] or '0'
    reply[#reply + 1] = (doubtful[i] or flying[i]) and 1 or 0
  end
end
return reply
