-- Notes that a process is alive if its declaration of the counter is not the one in force.
-- KEYS  state (hash)  ready (text)
-- ARGV  1 fingerprint of the declaration
-- Reply nothing
if is_out_of_use(redis.call('GET', ready)) then return LEFT end
heartbeat(ARGV[1], unpack(redis.call('HMGET', state, 'declared', 'awaited')))
