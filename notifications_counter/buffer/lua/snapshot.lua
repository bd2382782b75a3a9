-- Reads what waits for some users at one moment, and takes leases for their correction, or ends all leases on them.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)
--       leases (hash)
-- ARGV  1 the users, as JSON  2 what to do with leases: 'take', 'take free', which takes those that nobody has, and only
--       during a recovery, 'end', or ''  3 token of the leases to take  4 seconds that they last
-- Reply ready, epoch, batch ('' where missing), 1 if a cut exists, then for each user for whom something waits: its place
--       in the list, pending, flushing, 1 if dirty or in flight
local epoch = redis.call('GET', ready)
if epoch == 'left' then return LEFT end
local users = cjson.decode(ARGV[1])
if #users > 0 and ARGV[2] ~= '' and (ARGV[2] ~= 'take free' or is_recovering(epoch)) then
  redis.call('HDEL', leases, '') -- no such user; a script whose first write is this also runs without memory
  if ARGV[2] == 'end' then
    redis.call('HDEL', leases, unpack(users))
  else
    local held, taken = ARGV[2] == 'take free' and redis.call('HMGET', leases, unpack(users)) or {}, {}
    local mine = lease(ARGV[3], redis.call('TIME')[1])
    for i, user in ipairs(users) do
      if not held[i] then taken[#taken + 1], taken[#taken + 2] = user, mine end
    end
    if #taken > 0 then redis.call('HSET', leases, unpack(taken)) end
    redis.call('EXPIRE', leases, ARGV[4])
  end
end
local function scores_in(key)
  return #users > 0 and redis.call('EXISTS', key) == 1 and redis.call('ZMSCORE', key, unpack(users)) or {}
end
local about = redis.call('HMGET', state, 'epoch', 'batch')
local reply = {epoch or '', about[1] or '', about[2] or '', redis.call('EXISTS', flushing)}
local added, cut, doubtful = scores_in(pending), scores_in(flushing), scores_in(dirty)
local aloft = #users > 0 and redis.call('EXISTS', intents) == 1 and redis.call('HMGET', in_flight, unpack(users)) or {}
for i = 1, #users do
  if added[i] or cut[i] or doubtful[i] or aloft[i] then
    reply[#reply + 1] = i
    reply[#reply + 1] = added[i] or '0'
    reply[#reply + 1] = cut[i] or '0'
    reply[#reply + 1] = (doubtful[i] or aloft[i]) and 1 or 0
  end
end
return reply
