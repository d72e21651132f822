-- Takes those tenants off the list whose leases may have ended, at most `most`. Whoever takes one looks after
-- it, and puts it back if leases are left.
local tenants = redis.call('ZRANGEBYSCORE', prefix, '-inf', whole(now), 'LIMIT', 0, ask.most)
if #tenants > 0 then
  redis.call('ZREM', prefix, unpack(tenants))
end
return tenants
