-- Has readers count rows until a new epoch has recounted everyone: a recovery under way can no longer complete.
-- KEYS  state (hash)  ready (integer)
-- Reply nothing
if redis.call('GET', ready) == 'left' then return LEFT end
redis.call('HDEL', state, 'server')
redis.call('DEL', ready)
