-- KEYS: incarnations by their last beat. ARGV: incarnation; how long the dead are kept, s.
-- Returns 1, or 0 if the number is taken, be it by a dead one.
local time = redis.call('TIME')
local claimed = redis.call('ZADD', KEYS[1], 'NX', time[1] + time[2] / 1e6, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return claimed
