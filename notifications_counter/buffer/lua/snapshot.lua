-- Reads what waits for some owners at one moment. Also takes leases on them, to correct them or to cache their counts,
-- or ends all leases.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)
--       leases (hash)
-- ARGV  1 the owners, as JSON  2 what to do with leases: 'take'; 'take free', which takes those that
--       nobody has, and only where they are of use; 'end'; or ''  3 token of the leases to take
--       4 seconds that they last
-- Reply ready, epoch, batch ('' where missing), 1 if a batch is being flushed, then for each owner for whom something
--       waits: its index, pending, flushing, 1 if dirty or in flight
local ready_now = redis.call('GET', ready)
if is_out_of_use(ready_now) then return LEFT end
local owners = cjson.decode(ARGV[1])
local function scores_in(key)
  return #owners > 0 and redis.call('EXISTS', key) == 1 and redis.call('ZMSCORE', key, unpack(owners)) or {}
end
local about = redis.call('HMGET', state, 'epoch', 'batch')
local reply = {ready_now or '', about[1] or '', about[2] or '', redis.call('EXISTS', flushing)}
-- rule: dirty_counts
local added, cut, doubtful = scores_in(pending), scores_in(flushing), scores_in(dirty)
-- rule: flying
local flying = which_fly(owners)
if #owners > 0 and ARGV[2] ~= '' then
  redis.call('HDEL', leases, '') -- no such owner; a script whose first write is this also runs without memory
  if ARGV[2] == 'end' then
    redis.call('HDEL', leases, unpack(owners))
  else
    local now, taken = redis.call('TIME')[1], {}
    local held = ARGV[2] == 'take free' and redis.call('HMGET', leases, unpack(owners))
    for i, owner in ipairs(owners) do
      local useful = not flying[i] and (is_recovering(ready_now) or not doubtful[i])
      if not held or useful and is_free(held[i], now, ARGV[4]) then
        taken[#taken + 1], taken[#taken + 2] = owner, lease(ARGV[3], now)
      end
    end
    if #taken > 0 then redis.call('HSET', leases, unpack(taken)) end
    redis.call('EXPIRE', leases, ARGV[4])
  end
end
for i = 1, #owners do
  if added[i] or cut[i] or doubtful[i] or flying[i] then
    reply[#reply + 1] = i
    reply[#reply + 1] = added[i] or '0'
    reply[#reply + 1] = cut[i] or '0'
    reply[#reply + 1] = (doubtful[i] or flying[i]) and 1 or 0
  end
end
return reply
