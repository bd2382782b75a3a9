-- Reads what waits for some users at one moment. With a token, it also takes leases for their correction; a reader takes
-- those that nobody has, and only during a recovery.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  dirty (zset)
-- ARGV  1 token, or '' for none  2 milliseconds a lease lasts  3 the users, as JSON  4 '1' for a reader, else ''
-- Reply ready, epoch, batch ('' where missing), 1 if a cut exists, then for each user for whom something waits: its place
--       in the list, pending, flushing, 1 if dirty
local epoch = redis.call('GET', ready)
if epoch == 'left' then return LEFT end
local users = cjson.decode(ARGV[3])
local only_free = ARGV[4] == '1' and {'NX'}
if ARGV[1] ~= '' and #users > 0 and (not only_free or is_recovering(epoch)) then
  local _, now_ms = clock()
  local ends = now_ms + tonumber(ARGV[2])
  local text = string.format('%.0f', ends)
  redis.call('DEL', base .. ':lease') -- no such key; a script whose first write is this also runs without memory
  for _, user in ipairs(users) do
    redis.call('SET', lease_of(user), ARGV[1], 'PXAT', text, unpack(only_free or {}))
  end
  if ends > tonumber(redis.call('HGET', state, 'leased_until') or 0) then
    redis.call('HSET', state, 'leased_until', text)
  end
end
local function scores_in(key)
  return #users > 0 and redis.call('EXISTS', key) == 1 and redis.call('ZMSCORE', key, unpack(users)) or {}
end
local about = redis.call('HMGET', state, 'epoch', 'batch')
local reply = {epoch or '', about[1] or '', about[2] or '', redis.call('EXISTS', flushing)}
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
