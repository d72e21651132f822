-- KEYS: tenants, keys, keys of the tenant. ARGV: tenant id.
-- Returns false without the tenant, else its keys, in no order.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return false
end
local found = {}
for _, hash in ipairs(redis.call('HVALS', KEYS[3])) do
  found[#found + 1] = redis.call('HGET', KEYS[2], hash) or ''
end
return found
