-- KEYS: epoch, key ids by hash, keys, tenants, tiers. ARGV: key hash.
-- Returns false if the record is lost, {} for an unknown key, else {key, tenant, tier}; '' for what is not there.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
local id = redis.call('HGET', KEYS[2], ARGV[1])
if not id then
  return {}
end

local function named(json, field)
  local parsed, value = pcall(cjson.decode, json)
  local name = parsed and type(value) == 'table' and value[field]
  return type(name) == 'string' and name or ''
end

local key = redis.call('HGET', KEYS[3], id) or ''
local tenant = redis.call('HGET', KEYS[4], named(key, 'tenant_id')) or ''
local tier = redis.call('HGET', KEYS[5], named(tenant, 'tier')) or ''
return { key, tenant, tier }
