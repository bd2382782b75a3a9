-- Reads the last trouble that processes have noted.
-- KEYS  trouble (hash)
-- Reply time now, then the time of the trouble, when it began, and its reason, '' if there is none
local found = redis.call('HMGET', trouble, 'at', 'since', 'reason')
return {redis.call('TIME')[1], found[1] or '', found[2] or '', found[3] or ''}
