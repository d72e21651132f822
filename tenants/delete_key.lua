-- KEYS: keys, keys of the tenant. ARGV: key id. Returns how many keys were removed.
local hash = redis.call('HGET', KEYS[2], ARGV[1])
if not hash then
  return 0
end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[1], hash)
return 1
