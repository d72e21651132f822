-- Tenants that are due to be looked at, at most `most`: {time, tenants}. None is due again before that time.
local tenants = redis.call('ZRANGEBYSCORE', prefix, '-inf', now, 'LIMIT', 0, ask.most)
local again = now + ask.again_us
for _, tenant in ipairs(tenants) do
  redis.call('ZADD', prefix, 'XX', again, tenant)
end
return { again, tenants }
