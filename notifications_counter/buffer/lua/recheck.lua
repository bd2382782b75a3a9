-- Notes when the users of an open part were last recounted, or drops the part.
-- KEYS  1 open (hash)
-- ARGV  1 part  2 time of the check, or '' to drop it
-- Reply 1 if the part was still open
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 0 end
if ARGV[2] == '' then return redis.call('HDEL', KEYS[1], ARGV[1]) end
local part = cjson.decode(entry)
part.checked = tonumber(ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(part))
return 1
