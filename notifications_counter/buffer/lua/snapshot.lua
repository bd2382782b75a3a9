-- Reads what waits for some users at one moment. With a token, it also takes leases for their correction.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (integer)  dirty (zset)
-- ARGV  1 token, or '' for none  2 milliseconds a lease lasts  3 the users, as JSON
-- Reply ready, epoch, batch ('' where missing), 1 if a cut exists, then for each user for whom something waits: its place
--       in the list, pending, flushing, 1 if dirty
if redis.call('GET', ready) == 'left' then return LEFT end
local users = cjson.decode(ARGV[3])
if ARGV[1] ~= '' and #users > 0 then
  local _, now_ms = clock()
  local ends = now_ms + tonumber(ARGV[2])
  local text = string.format('%.0f', ends)
  redis.call('DEL', lease_of(users[1])) -- a script whose first write is this also runs without memory
  for _, user in ipairs(users) do redis.call('SET', lease_of(user), ARGV[1], 'PXAT', text) end
  if ends > tonumber(redis.call('HGET', state, 'leased_until') or 0) then
    redis.call('HSET', state, 'leased_until', text)
  end
end
local function scores_in(key)
  return #users > 0 and redis.call('EXISTS', key) == 1 and redis.call('ZMSCORE', key, unpack(users)) or {}
end
local about = redis.call('HMGET', state, 'epoch', 'batch')
local reply = {redis.call('GET', ready) or '', about[1] or '', about[2] or '', redis.call('EXISTS', flushing)}
local added, cut, doubtful = scores_in(pending), scores_in(flushing), scores_in(dirty)
for i = 1, #users do
  if added[i] or cut[i] or doubtful[i] then
    reply[#reply + 1] = i
    reply[#reply + 1] = added[i] or '0'
    reply[#reply + 1] = cut[i] or '0'
    reply[#reply + 1] = doubtful[i] and 1 or 0
  end
end
return reply
