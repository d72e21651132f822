-- Leases of running requests {id, cached tokens, completion tokens}, and how far these are.
for _, running in ipairs(ask.running) do
  local id = running[1]
  local opened = read_open(id)
  if opened then
    opened[6], opened[7] = running[2], running[3]
    redis.call('HSET', OPEN, id, cmsgpack.pack(opened))
    lease(id, opened[2], opened[8], opened[8] and ask.purse_us or ask.lease_us)
  end
end
redis.call('EXPIRE', OPEN, KEEP_S)
return 1
