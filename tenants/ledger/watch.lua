-- KEYS: tenants that may have open reservations, by when a lease of theirs may end. ARGV: tenant, µs, TTL in s.
redis.call('ZADD', KEYS[1], 'NX', ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
