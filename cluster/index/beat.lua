-- KEYS: incarnations by their last beat, aborts left for this one.
-- ARGV: incarnation; after how long one is dead, s; how long the dead are kept, s; most dead told; most aborts.
-- Returns whether it was alive (1 or 0), the dead, the aborts.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local last = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[3])
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2], 'LIMIT', 0, ARGV[4])
local aborts = redis.pcall('LRANGE', KEYS[2], 0, ARGV[5] - 1)
redis.call('DEL', KEYS[2])
return { last and now - last < tonumber(ARGV[2]) and 1 or 0, dead, aborts.err and {} or aborts }
