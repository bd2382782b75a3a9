-- Corrects counters whose lease is still ours, in the epoch in which they were looked at.
-- KEYS  pending (zset)  state (hash)  ready (integer)  open (hash)  fences (zset)  dirty (zset)  stats (hash)
-- ARGV  1 epoch  2 token, then user, correction for each
-- Reply for each user 1 if it is right now, 0 if it was active or Redis is in another epoch, or has lost pending; processes with open
--       streams are told of those that changed
local about = redis.call('HMGET', state, 'epoch', 'waiting_since')
local lost = about[2] and redis.call('EXISTS', pending) == 0 -- a correction would hide it
local current = about[1] == ARGV[1] and not lost
local epoch = redis.call('GET', ready)
local opened = redis.call('EXISTS', open) == 1
local now = redis.call('TIME')[1]
local reply, changed, fixed, dropped = {}, {}, 0, 0
for i = 3, #ARGV, 2 do
  local user, correction = ARGV[i], ARGV[i + 1]
  local lease = lease_of(user)
  local ours = current and redis.call('GET', lease) == ARGV[2]
  if ours then
    fixed = fixed + 1
    redis.call('DEL', lease)
    if epoch then redis.call('DEL', total_of(user, epoch)) end
    dropped = dropped + redis.call('ZREM', dirty, user)
    if correction ~= '0' then
      redis.call('ZINCRBY', pending, correction, user)
      changed[#changed + 1] = user
    end
    if opened then redis.call('ZADD', fences, redis.call('HINCRBY', state, 'seq', 1), user) end
  end
  reply[#reply + 1] = ours and 1 or 0
end
if #changed > 0 and not about[2] then redis.call('HSET', state, 'waiting_since', now) end
if dropped > 0 then redis.call('HINCRBY', state, 'dirty', -dropped) end
if fixed > 0 then
  redis.pcall('HINCRBY', stats, 'recounted', fixed)
  redis.pcall('HINCRBY', stats, epoch and 'corrected' or 'restored', #changed)
end
tell_listeners(changed, now, redis.call('HGET', state, 'live_until'))
return reply
