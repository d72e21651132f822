-- Reservations whose lease has ended. Returns now, when the next lease ends (0: there is none), and of each
-- {blob, cached tokens, completion tokens}; -1 cached tokens: it was never renewed.
local found, next_end = {}, 0
for _, key in ipairs({ LEASES .. TENANT, PURSES }) do
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, ask.most)
  for _, id in ipairs(ids) do
    local opened = read_open(id)
    if opened then
      found[#found + 1] = { opened[1], opened[6], opened[7] }
    else
      redis.call('ZREM', key, id)
    end
  end
  local following = redis.call('ZRANGEBYSCORE', key, now + 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local ends = #ids == ask.most and now or tonumber(following[2] or 0)
  if ends > 0 and (next_end == 0 or ends < next_end) then
    next_end = ends
  end
end
return { now, next_end, found }
