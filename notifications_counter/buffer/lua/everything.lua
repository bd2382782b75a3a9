-- Reads all that waits in a shard at one moment, for owners whose keys have the same beginning.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)
--       stats (hash)
-- ARGV  1 that beginning  2 for how many owners something may wait
-- Reply ready, epoch, batch ('' where missing), 1 if a batch is being flushed, and '' if something waits for more
--       owners; otherwise a list as JSON, which is read faster: each owner's key, pending, flushing, and whether it is
--       dirty or in flight
local ready_now = redis.call('GET', ready)
if is_out_of_use(ready_now) then return LEFT end
if not redis.pcall('HGET', stats, 'top') then redis.pcall('HSET', stats, 'top', 1) end -- for the check of the index
local about = redis.call('HMGET', state, 'epoch', 'batch')
local has_cut = redis.call('EXISTS', flushing)
-- rule: intents
local flies = redis.call('EXISTS', intents) == 1
local number = redis.call('ZCARD', pending) + redis.call('ZCARD', flushing) + redis.call('ZCARD', dirty)
  + (flies and redis.call('HLEN', in_flight) or 0)
local reply = {ready_now or '', about[1] or '', about[2] or '', has_cut, ''}
if number > tonumber(ARGV[2]) then return reply end
local found, offsets = {}, {}
local function note(owner, field, value)
  if owner:sub(1, #ARGV[1]) ~= ARGV[1] then return end
  local offset = offsets[owner]
  if not offset then
    offset = #found
    offsets[owner] = offset
    found[offset + 1], found[offset + 2], found[offset + 3], found[offset + 4] = owner, '0', '0', false
  end
  found[offset + field] = value
end
for field, key in pairs({[2] = pending, [3] = flushing}) do
  local waiting = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #waiting, 2 do note(waiting[i], field, waiting[i + 1]) end
end
-- rule: dirty_counts
for _, owner in ipairs(redis.call('ZRANGE', dirty, 0, -1)) do note(owner, 4, true) end
-- rule: flying
for _, owner in ipairs(flies and redis.call('HKEYS', in_flight) or {}) do note(owner, 4, true) end
reply[5] = cjson.encode(found)
return reply
