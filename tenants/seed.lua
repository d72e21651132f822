-- KEYS: mark, tenants, keys, then one "keys of" per account.
-- ARGV: mark, then per account: tenant id, tenant, key id, key hash, key.
-- Returns false, or the mark that was already there.
local mark = redis.call('GET', KEYS[1])
if mark then
  return mark
end
for account = 1, #KEYS - 3 do
  local at = 2 + (account - 1) * 5
  redis.call('HSETNX', KEYS[2], ARGV[at], ARGV[at + 1])
  redis.call('HSET', KEYS[3 + account], ARGV[at + 2], ARGV[at + 3])
  redis.call('HSET', KEYS[3], ARGV[at + 3], ARGV[at + 4])
end
redis.call('SET', KEYS[1], ARGV[1])
return false
