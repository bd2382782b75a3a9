-- Reads what waits for some users at one moment. With a token, it also takes leases for their correction.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (integer)  dirty (zset)
-- ARGV  1 token, or '' for none  2 milliseconds a lease lasts  3… users
-- Reply ready, epoch, batch ('' where missing), 1 if a cut exists, then for each user pending, flushing, 1 if dirty
if redis.call('GET', ready) == 'left' then return LEFT end
if ARGV[1] ~= '' then
  local _, now_ms = clock()
  local ends = now_ms + tonumber(ARGV[2])
  local text = string.format('%.0f', ends)
  for i = 3, #ARGV do
    local lease = lease_of(ARGV[i])
    redis.call('DEL', lease)
    redis.call('SET', lease, ARGV[1], 'PXAT', text)
  end
  if ends > tonumber(redis.call('HGET', state, 'leased_until') or 0) then
    redis.call('HSET', state, 'leased_until', text)
  end
end
local about = redis.call('HMGET', state, 'epoch', 'batch')
local cut = redis.call('EXISTS', flushing)
local reply = {redis.call('GET', ready) or '', about[1] or '', about[2] or '', cut}
for i = 3, #ARGV do
  reply[#reply + 1] = redis.call('ZSCORE', pending, ARGV[i]) or '0'
  reply[#reply + 1] = cut == 1 and redis.call('ZSCORE', flushing, ARGV[i]) or '0'
  reply[#reply + 1] = redis.call('ZSCORE', dirty, ARGV[i]) and 1 or 0
end
return reply
