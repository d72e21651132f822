-- A tenant was looked at. KEYS: as of `watch`. ARGV: tenant, the time that `watched` told, when its next lease
-- ends in µs or 0 if it has none. It is looked at again when that ends, and no later than that time, for a
-- reserve may have come meanwhile. One without leases goes, unless its score tells of such a reserve.
if ARGV[3] ~= '0' then
  redis.call('ZADD', KEYS[1], 'XX', 'LT', ARGV[3], ARGV[1])
elseif tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) == tonumber(ARGV[2]) then
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return 1
