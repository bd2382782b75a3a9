-- Corrects counters whose lease is still ours, in the epoch in which they were looked at.
-- KEYS  1 state (hash)  2 ready (integer)  3 pending (zset)  4 open (hash)  5 fences (zset)  6 dirty (zset)
--       7 stats (hash)
-- ARGV  1 base of the shard's keys  2 epoch  3 token, then user, correction for each
-- Reply for each user 1 if it is right now, 0 if it was active or Redis is in another epoch; processes with open
--       streams are told of those that changed
local state, ready_key, pending, open, fences, dirty, stats = unpack(KEYS)
local base, token = ARGV[1], ARGV[3]
local current = redis.call('HGET', state, 'epoch') == ARGV[2]
local ready = redis.call('GET', ready_key)
local opened = redis.call('EXISTS', open) == 1
local now = redis.call('TIME')[1]
local reply, changed, fixed = {}, {}, 0
for i = 4, #ARGV, 2 do
  local user, correction = ARGV[i], ARGV[i + 1]
  local lease = base .. ':lease:' .. user
  local ours = current and redis.call('GET', lease) == token
  if ours then
    fixed = fixed + 1
    redis.call('DEL', lease)
    if ready then redis.call('DEL', base .. ':total:' .. ready .. ':' .. user) end
    redis.call('ZREM', dirty, user)
    if correction ~= '0' then
      redis.call('ZINCRBY', pending, correction, user)
      redis.call('HSETNX', state, 'waiting_since', now)
      changed[#changed + 1] = user
    end
    if opened then redis.call('ZADD', fences, redis.call('HINCRBY', state, 'seq', 1), user) end
  end
  reply[#reply + 1] = ours and 1 or 0
end
if fixed > 0 then
  redis.pcall('HINCRBY', stats, 'recounted', fixed)
  redis.pcall('HINCRBY', stats, ready and 'corrected' or 'restored', #changed)
end
if #changed > 0 and tonumber(redis.call('HGET', state, 'live_until') or 0) >= tonumber(now) then
  redis.pcall('PUBLISH', base .. ':live', cjson.encode(changed))
end
return reply
