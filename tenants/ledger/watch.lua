-- KEYS: tenants that may have open reservations, by when they are looked at. ARGV: tenant, TTL in s.
-- A new one is looked at at once; of one that is there, the score moves, so that a reaper who is looking
-- just now does not take it off.
redis.call('ZINCRBY', KEYS[1], 1, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
