-- Open reservations: {blob, key id, day, cost, takes {who, tokens, tokens, tokens} or -1, cached tokens or
-- -1 before the first renewal, completion tokens, whether it is a purse}.
local OPEN = prefix .. 'open'
local OPEN_TYPES = { 'string', 'string', 'number', 'number', 'table', 'number', 'number', 'boolean' }

local function read_open(id)
  local opened = unpacked(redis.call('HGET', OPEN, id), 'open', 0)
  for at, kind in ipairs(opened and OPEN_TYPES or {}) do
    if type(opened[at]) ~= kind then
      error('CORRUPT open')
    end
  end
  return opened
end

-- Where leases stand: those of requests with the tenant and with the key; those of purses are no requests.
local LEASES, PURSES = prefix .. 'leases:', prefix .. 'purses'

local function lease_keys(key_id, is_purse)
  return is_purse and { PURSES } or { LEASES .. TENANT, LEASES .. key_id }
end

local function lease(id, key_id, is_purse, lease_us)
  for _, key in ipairs(lease_keys(key_id, is_purse)) do
    redis.call('ZADD', key, now + lease_us, id)
    redis.call('EXPIRE', key, KEEP_S)
  end
end

-- Requests whose lease has not ended.
local function read_leases(who)
  return redis.call('ZCOUNT', LEASES .. who, now + 1, '+inf')
end
