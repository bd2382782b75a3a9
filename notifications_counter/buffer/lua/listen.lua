-- Has the other scripts publish owners whose counts change, for a while: as lists in JSON, on the channel base:live.
-- KEYS  state (hash)  ready (text)
-- ARGV  1 seconds
-- Reply nothing
if is_out_of_use(redis.call('GET', ready)) then return LEFT end
redis.call('HSET', state, 'live_until', string.format('%.0f', tonumber(redis.call('TIME')[1]) + tonumber(ARGV[1])))
