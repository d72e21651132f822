-- KEYS: tenants, keys, keys of the tenant. ARGV: tenant id, key id, key hash, key.
-- Returns 'ok', 'no_tenant' or 'taken'.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 'no_tenant'
end
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 1 or redis.call('HSETNX', KEYS[3], ARGV[2], ARGV[3]) == 0 then
  return 'taken'
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
return 'ok'
