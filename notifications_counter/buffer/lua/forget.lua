-- Has readers count rows until a new epoch begins: a recovery under way can no longer complete.
-- KEYS  ready (text)
-- Reply nothing
if redis.call('GET', ready) == 'left' then return LEFT end
redis.call('DEL', ready)
