-- Reads the outages and other trouble that processes have noted.
-- KEYS  outages (hash)
-- Reply time now, then field, value, …
return {redis.call('TIME')[1], unpack(redis.call('HGETALL', outages))}
