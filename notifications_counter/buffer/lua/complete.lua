-- Ends a recovery: from now on readers trust the counters of this epoch.
-- KEYS  state (hash)  ready (text)
-- ARGV  1 epoch and fingerprint, as in ready  2 name of the server, as it says just before
-- Reply 1 if this call ended it; 0 if it had ended before, or Redis is in another epoch, or on another server
-- rules: completed, epoch
if redis.call('GET', ready) ~= ARGV[1] .. '?' or redis.call('HGET', state, 'server') ~= ARGV[2] then return 0 end
redis.call('SET', ready, ARGV[1])
return 1
