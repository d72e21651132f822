-- KEYS: tenants, keys, keys of the tenant. ARGV: tenant id. Returns how many tenants were removed.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
for _, hash in ipairs(redis.call('HVALS', KEYS[3])) do
  redis.call('HDEL', KEYS[2], hash)
end
redis.call('DEL', KEYS[3])
return 1
