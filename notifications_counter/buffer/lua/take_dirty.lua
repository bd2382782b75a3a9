-- Takes leases on dirty owners that nobody else is about to correct, longest waiting first.
-- KEYS  ready (text)  dirty (zset)  leases (hash)
-- ARGV  1 rank of the first owner to consider  2 how many to take  3 seconds after which somebody else's lease is taken
--       over  4 seconds that leases last
-- Reply the owners
if is_out_of_use(redis.call('GET', ready)) then return LEFT end
local rank, number = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = redis.call('TIME')[1]
local taken, fresh = {}, {}
repeat
  local owners = redis.call('ZRANGE', dirty, rank, rank + 999)
  local held = #owners > 0 and redis.call('HMGET', leases, unpack(owners)) or {}
  for i, owner in ipairs(owners) do
    if #taken == number then break end
    if is_free(held[i], now, ARGV[3]) then
      taken[#taken + 1] = owner
      fresh[#fresh + 1], fresh[#fresh + 2] = owner, lease('', now)
    end
  end
  rank = rank + 1000
until #taken == number or #owners < 1000
if #taken > 0 then
  redis.call('HDEL', leases, '') -- no such owner; a script whose first write is this also runs without memory
  redis.call('HSET', leases, unpack(fresh))
  redis.call('EXPIRE', leases, ARGV[4])
end
return taken
