-- Asks the other scripts to tell, for a while, whose counter changes: a list of users in JSON, published as base:live.
-- KEYS  state (hash)
-- ARGV  1 seconds
-- Reply nothing
redis.call('HSET', state, 'live_until', string.format('%.0f', tonumber(redis.call('TIME')[1]) + tonumber(ARGV[1])))
