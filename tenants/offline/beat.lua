-- A gateway lives. KEYS: the gateways by their last beat (ms), the record's epoch.
-- ARGV: gateway id, ms until one that is not heard is gone, now in ms (empty: Redis' own clock).
-- Returns how many live, and the epoch; '': there is none.
local gateways, epoch = KEYS[1], KEYS[2]
local ttl_ms, now = tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local kind = redis.call('TYPE', gateways).ok
if kind ~= 'zset' and kind ~= 'none' then
  redis.call('DEL', gateways)
end
redis.call('ZADD', gateways, now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', gateways, '-inf', now - ttl_ms)
redis.call('PEXPIRE', gateways, ttl_ms)
return {redis.call('ZCARD', gateways), redis.call('GET', epoch) or ''}
