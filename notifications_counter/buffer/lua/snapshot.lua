-- What waits for some users at one moment; with a token, also leases for their correction.
-- KEYS  1 pending (zset)  2 flushing (zset)  3 state (hash)  4 ready (integer)  5 dirty (zset)
-- ARGV  1 base of the shard's keys  2 token, or '' for none  3 milliseconds a lease lasts  4… users
-- Reply ready, epoch, batch ('' where missing), 1 if a cut exists, then for each user pending, flushing, 1 if dirty
local pending, flushing, state, ready, dirty = unpack(KEYS)
if ARGV[2] ~= '' then
  local time = redis.call('TIME')
  local till = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[3])
  local text = string.format('%.0f', till)
  for i = 4, #ARGV do
    local lease = ARGV[1] .. ':lease:' .. ARGV[i]
    redis.call('DEL', lease)
    redis.call('SET', lease, ARGV[2], 'PXAT', text)
  end
  if till > tonumber(redis.call('HGET', state, 'leased_until') or 0) then
    redis.call('HSET', state, 'leased_until', text)
  end
end
local about = redis.call('HMGET', state, 'epoch', 'batch')
local cut = redis.call('EXISTS', flushing)
local reply = {redis.call('GET', ready) or '', about[1] or '', about[2] or '', cut}
for i = 4, #ARGV do
  reply[#reply + 1] = redis.call('ZSCORE', pending, ARGV[i]) or '0'
  reply[#reply + 1] = cut == 1 and redis.call('ZSCORE', flushing, ARGV[i]) or '0'
  reply[#reply + 1] = redis.call('ZSCORE', dirty, ARGV[i]) and 1 or 0
end
return reply
