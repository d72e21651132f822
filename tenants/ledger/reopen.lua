-- Reservations that were forgotten, {id, hour, blob, key id, day, cost, whether it is a purse} each: money and
-- place are reserved again, without a question and without the rates. What is open or settled stays as it is.
for _, held in ipairs(ask.held) do
  local id, hour, blob, key_id, day, cost, is_purse = unpack(held)
  local is_known = redis.call('HEXISTS', OPEN, id) + redis.call('HEXISTS', prefix .. 'settled:' .. hour, id) > 0
  if not is_known then
    day = min(day, today)
    local account = read_account({ TENANT, key_id }, {})
    redis.call('HSET', OPEN, id, cmsgpack.pack({ blob, key_id, day, cost, {}, -1, 0, is_purse }))
    for _, money in pairs(account.money) do
      change_money(money, day, 0, cost)
    end
    write_account({ money = account.money })
    lease(id, key_id, is_purse, ask.lease_us)
  end
end
redis.call('EXPIRE', OPEN, KEEP_S)
return 1
