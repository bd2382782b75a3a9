-- Takes leases on dirty users that nobody else is about to correct, longest waiting first.
-- KEYS  ready (text)  dirty (zset)  leases (hash)
-- ARGV  1 rank of the first user to consider  2 how many to take  3 seconds after which somebody else's lease is taken over
--       4 seconds that leases last
-- Reply the users
if redis.call('GET', ready) == 'left' then return LEFT end
local rank, number, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = redis.call('TIME')[1]
local taken, fresh = {}, {}
repeat
  local users = redis.call('ZRANGE', dirty, rank, rank + 999)
  local held = #users > 0 and redis.call('HMGET', leases, unpack(users)) or {}
  for i, user in ipairs(users) do
    if #taken == number then break end
    local age = held[i] and now - (held[i]:match('@(%d+)$') or 0)
    if not age or age < 0 or age >= limit then -- below 0: the clock was set back
      taken[#taken + 1] = user
      fresh[#fresh + 1], fresh[#fresh + 2] = user, lease('', now)
    end
  end
  rank = rank + 1000
until #taken == number or #users < 1000
if #taken > 0 then
  redis.call('HDEL', leases, '') -- no such user; a script whose first write is this also runs without memory
  redis.call('HSET', leases, unpack(fresh))
  redis.call('EXPIRE', leases, ARGV[4])
end
return taken
