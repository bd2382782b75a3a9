-- Asks the other scripts to tell, for a while, whose counter changes: a list of users in JSON, published as base:live.
-- KEYS  1 state (hash)
-- ARGV  1 seconds
local till = tonumber(redis.call('TIME')[1]) + tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'live_until', string.format('%.0f', till))
