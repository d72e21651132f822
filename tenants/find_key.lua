-- KEYS: tenants, keys. ARGV: key hash.
-- Returns {} if the key or its tenant is not there, {key} if the key names no tenant, {key, tenant}.
local key = redis.call('HGET', KEYS[2], ARGV[1])
if not key then
  return {}
end
local parsed, value = pcall(cjson.decode, key)
if not parsed or type(value) ~= 'table' or type(value.tenant_id) ~= 'string' then
  return { key }
end
local tenant = redis.call('HGET', KEYS[1], value.tenant_id)
if not tenant then
  return {}
end
return { key, tenant }
