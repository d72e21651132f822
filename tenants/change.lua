-- KEYS: change count, audit log, then what guards and commands name.
-- ARGV: guards {{key, value, '' for none}, …} and commands {{command, key, …}, …}, in msgpack; the entry for
-- the audit log, '' for none; about how many entries are kept.
-- Returns 0 and writes nothing if a guard's key does not hold its value, else 1.
for _, guard in ipairs(cmsgpack.unpack(ARGV[1])) do
  if (redis.call('GET', guard[1]) or '') ~= guard[2] then
    return 0
  end
end
for _, command in ipairs(cmsgpack.unpack(ARGV[2])) do
  redis.call(unpack(command))
end
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'entry', ARGV[3])
  if redis.call('INCR', KEYS[1]) == 1 then
    -- From the time, in µs: a count that was lost goes on above all that it ever was.
    local now = redis.call('TIME')
    redis.call('SET', KEYS[1], string.format('%.0f', now[1] * 1000000 + now[2]))
  end
end
return 1
