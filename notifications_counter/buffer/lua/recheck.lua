-- Notes when the users of an open part were last recounted, or drops the part. A part that began in the future, because
-- the clock was set back, begins now.
-- KEYS  open (hash)
-- ARGV  1 part  2 time of the check, or '' to drop it
-- Reply 1 if the part was still open
local entry = redis.call('HGET', open, ARGV[1])
if not entry then return 0 end
if ARGV[2] == '' then return redis.call('HDEL', open, ARGV[1]) end
local part = part_of(entry)
if not part then return 0 end
part.checked = tonumber(ARGV[2])
part.began = math.min(tonumber(part.began) or 0, part.checked)
redis.call('HSET', open, ARGV[1], cjson.encode(part))
return 1
